"""Packed weights as numpy knows them: bits unpacked one by one, scales and values in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Format:
    """What ``mode``, ``bits`` and ``group_size`` say; ``keywords`` are those of our ops and of MLX's."""

    mode: str
    bits: int
    group_size: int

    @property
    def keywords(self) -> dict[str, str | int]:
        return {"mode": self.mode, "bits": self.bits, "group_size": self.group_size}

    @property
    def affine(self) -> bool:
        return self.mode == "affine"

    def __str__(self) -> str:
        return f"{self.mode}{self.bits}g{self.group_size}"


AFFINE = tuple(Format("affine", bits, group) for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64, 128))
MICROSCALED = (Format("mxfp4", 4, 32), Format("mxfp8", 8, 32), Format("nvfp4", 4, 16))
FORMATS = AFFINE + MICROSCALED

NAN_E4M3 = 0x7F


def random_words(format: Format, rows: tuple[int, ...], columns: int, seed: int = 0) -> np.ndarray:
    """Packed rows of any codes but NaN."""
    rng = np.random.default_rng([seed, *rows, columns])
    codes = rng.integers(0, 256, (*rows, columns * format.bits // 8), dtype=np.uint8)
    if format.mode == "mxfp8":
        codes[codes & NAN_E4M3 == NAN_E4M3] = 0
    return codes.view(np.uint32)


def random_scale_codes(format: Format, rows: tuple[int, ...], groups: int, seed: int = 0) -> np.ndarray:
    """Scales that make weights of the order of 1; those of nvfp4 have signs."""
    rng = np.random.default_rng([seed, *rows, groups, 1])
    if format.mode == "nvfp4":
        signs = rng.integers(0, 2, (*rows, groups), dtype=np.uint8) << 7
        return rng.integers(0x20, 0x31, (*rows, groups), dtype=np.uint8) | signs
    one = 127 - (7 if format.mode == "mxfp8" else 1)
    return rng.integers(one - 2, one + 2, (*rows, groups), dtype=np.uint8)


def unpack(words: np.ndarray, bits: int) -> np.ndarray:
    """Codes of a little-endian bit stream along each row."""
    stream = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=-1, bitorder="little")
    codes = stream.reshape(*words.shape[:-1], words.shape[-1] * 32 // bits, bits)
    return (codes.astype(np.int64) << np.arange(bits)).sum(axis=-1)


def decode_float(codes: np.ndarray, exponent_bits: int, mantissa_bits: int) -> np.ndarray:
    mantissa = codes & ((1 << mantissa_bits) - 1)
    exponent = codes >> mantissa_bits & ((1 << exponent_bits) - 1)
    bias = (1 << (exponent_bits - 1)) - 1
    normal = (1 + mantissa / 2.0**mantissa_bits) * 2.0 ** (exponent - bias)
    subnormal = mantissa * 2.0 ** (1 - bias - mantissa_bits)
    magnitude = np.where(exponent == 0, subnormal, normal)
    return np.where(codes >> (exponent_bits + mantissa_bits) & 1, -magnitude, magnitude)


def decode_e4m3(codes: np.ndarray) -> np.ndarray:
    return np.where(codes & NAN_E4M3 == NAN_E4M3, np.nan, decode_float(codes, 4, 3))


def decode_e8m0(codes: np.ndarray) -> np.ndarray:
    return np.where(codes == 255, np.inf, 2.0 ** (codes.astype(np.float64) - 127))


def dequantize(
    format: Format, words: np.ndarray, scales: np.ndarray, biases: np.ndarray | float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Weights in float64, and the sum of the magnitudes of their two terms."""
    codes = unpack(words, format.bits)
    if format.affine:
        values, factors = codes.astype(np.float64), scales
    else:
        values = decode_e4m3(codes) if format.mode == "mxfp8" else decode_float(codes, 2, 1)
        factors = (decode_e4m3 if format.mode == "nvfp4" else decode_e8m0)(scales.astype(np.int64))
    scaled = values * np.repeat(factors, format.group_size, axis=-1)
    offset = np.repeat(np.broadcast_to(biases, factors.shape), format.group_size, axis=-1)
    return scaled + offset, np.abs(scaled) + np.abs(offset)
