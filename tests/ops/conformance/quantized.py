"""Products and lookups of packed weights."""

from __future__ import annotations

from typing import Any

import numpy as np

import mlx_tessl as mt

from ..quantization import AFFINE, FORMATS, MICROSCALED, Format, dequantize, random_scale_codes, random_words
from .matmul import ACTIVATIONS
from .spec import Case, Expected, OpSpec, Refusal, Shapes, activate


def _format_of(mode: str, bits: int | None, group_size: int | None) -> Format:
    default_bits, default_group = {"affine": (4, 64), "mxfp4": (4, 32), "mxfp8": (8, 32), "nvfp4": (4, 16)}[mode]
    return Format(mode, bits or default_bits, group_size or default_group)


def quantized_matmul_oracle(
    x: np.ndarray,
    w: np.ndarray,
    scales: np.ndarray,
    biases: np.ndarray | float = 0.0,
    bias: np.ndarray | float = 0.0,
    *,
    transpose: bool = True,
    group_size: int | None = None,
    bits: int | None = None,
    mode: str = "affine",
    activation: str | None = None,
    **_: Any,
) -> Expected:
    weights, magnitudes = dequantize(_format_of(mode, bits, group_size), w, scales, biases)
    if transpose:
        weights, magnitudes = weights.swapaxes(-1, -2), magnitudes.swapaxes(-1, -2)
    z = x @ weights + bias
    return activate(z, activation), np.abs(x) @ magnitudes + np.abs(bias)


def quantized_embedding_oracle(
    ids: np.ndarray,
    w: np.ndarray,
    scales: np.ndarray,
    biases: np.ndarray | float = 0.0,
    *,
    group_size: int | None = None,
    bits: int | None = None,
    mode: str = "affine",
) -> Expected:
    weights, magnitudes = dequantize(_format_of(mode, bits, group_size), w, scales, biases)
    rows = np.where(ids < 0, ids + len(w), ids)
    valid = ((rows >= 0) & (rows < len(w)))[..., None]
    safe = np.where(valid[..., 0], rows, 0)
    return np.where(valid, weights[safe], 0.0), np.where(valid, magnitudes[safe], 0.0)


def _quantized_case(
    name: str, format: Format, x: tuple[int, ...], rows: tuple[int, ...], columns: int, **keywords: Any
) -> Case:
    groups = columns // format.group_size
    shapes: Shapes = {"x": x}
    integers = {"w": random_words(format, rows, columns)}
    if format.affine:
        shapes |= {"scales": (*rows, groups), "biases": (*rows, groups)}
    else:
        integers["scales"] = random_scale_codes(format, rows, groups)
    if "bias" in keywords:
        shapes["bias"] = keywords.pop("bias")
    # Weights of the order of 1, so that sines of the result, in tests of second gradients, still mean something.
    return Case(name, shapes, {**format.keywords, **keywords}, integers, {"scales": 0.5**format.bits})


_AFFINE4 = Format("affine", 4, 64)
_EIGHT_WORDS = {"w": np.zeros((5, 8), np.uint32)}  # 5 rows of 64 values of 4 bits
_PACKED = {"scales": (5, 1), "biases": (5, 1)}

QUANTIZED_MATMUL = OpSpec(
    name="quantized_matmul",
    op=mt.quantized_matmul,
    twin=mt.reference.quantized_matmul,
    oracle=quantized_matmul_oracle,
    # gamma_K of the sum, two roundings of a weight, and a few for the epilogue as in a plain product.
    roundings=lambda case: 1.13 * (case.shapes["x"][-1] + 7) + 8,
    cases=(
        _quantized_case("plain", _AFFINE4, (37, 192), (71,), 192),
        *(_quantized_case(str(f), f, (3, 2 * f.group_size), (11,), 2 * f.group_size) for f in FORMATS),
        *(
            _quantized_case(f"{f}_plain", f, (20, 11), (11,), 3 * f.group_size, transpose=False)
            for f in (Format("affine", 3, 32), Format("affine", 8, 64), *MICROSCALED)
        ),
        _quantized_case("vector", _AFFINE4, (64,), (9,), 64, bias=(9,)),
        _quantized_case("one_row_plain", _AFFINE4, (1, 50), (50,), 128, transpose=False),
        _quantized_case("one_column", _AFFINE4, (9, 64), (1,), 64),
        _quantized_case("sequence", _AFFINE4, (2, 5, 64), (9,), 64, bias=(9,), activation="gelu"),
        _quantized_case("batched", _AFFINE4, (2, 20, 64), (2, 9), 64, activation="silu"),
        _quantized_case("broadcast_left", _AFFINE4, (4, 64), (3, 9), 64, bias=(9,)),
        _quantized_case("broadcast_both", _AFFINE4, (3, 1, 4, 64), (2, 9), 64),
        _quantized_case("batched_plain", _AFFINE4, (2, 1, 9), (2, 9), 64, transpose=False),
        _quantized_case("relu", _AFFINE4, (33, 128), (29,), 128, activation="relu"),
        _quantized_case("gelu_tanh", _AFFINE4, (33, 128), (29,), 128, activation="gelu_tanh", bias=(29,)),
        _quantized_case("empty_m", _AFFINE4, (0, 64), (9,), 64),
        _quantized_case("empty_batch", _AFFINE4, (0, 3, 64), (9,), 64),
    ),
    refusals=(
        Refusal(
            "default_bits",
            {"x": (3, 64), **_PACKED},
            "bits = 4 and group_size = 64; these shapes say that bits * group_size is 512",
            integers={"w": np.zeros((5, 16), np.uint32)},
        ),
        Refusal("inner", {"x": (3, 65), **_PACKED}, "last dimension must be 64", integers=_EIGHT_WORDS),
        Refusal(
            "inner_plain",
            {"x": (3, 64), **_PACKED},
            "must be 5, the rows of w",
            {"transpose": False},
            integers=_EIGHT_WORDS,
        ),
        Refusal("scalar", {"x": (), **_PACKED}, "x has shape", integers=_EIGHT_WORDS),
        Refusal("bits", {"x": (3, 64), **_PACKED}, "bits is 7", {"bits": 7}, integers=_EIGHT_WORDS),
        Refusal("group", {"x": (3, 64), **_PACKED}, "group_size is 16", {"group_size": 16}, integers=_EIGHT_WORDS),
        Refusal("mode", {"x": (3, 64), **_PACKED}, "mode is 'int4'", {"mode": "int4"}, integers=_EIGHT_WORDS),
        Refusal(
            "mxfp4_bits", {"x": (3, 64), **_PACKED}, "bits is 8", {"mode": "mxfp4", "bits": 8}, integers=_EIGHT_WORDS
        ),
        Refusal(
            "nvfp4_group",
            {"x": (3, 64), **_PACKED},
            "group_size is 32",
            {"mode": "nvfp4", "group_size": 32},
            integers=_EIGHT_WORDS,
        ),
        Refusal("w_dtype", {"x": (3, 64), "w": (5, 8), **_PACKED}, "w is float32"),
        Refusal(
            "w_vector",
            {"x": (3, 64), "scales": (1,), "biases": (1,)},
            "w has shape",
            integers={"w": _EIGHT_WORDS["w"][0]},
        ),
        Refusal("no_biases", {"x": (3, 64), "scales": (5, 1)}, "biases is None", integers=_EIGHT_WORDS),
        Refusal(
            "biases", {"x": (3, 64), "scales": (5, 1), "biases": (5, 2)}, "biases has shape", integers=_EIGHT_WORDS
        ),
        Refusal(
            "scales", {"x": (3, 64), "scales": (4, 1), "biases": (4, 1)}, "scales has shape", integers=_EIGHT_WORDS
        ),
        Refusal(
            "scales_batch",
            {"x": (3, 64), **_PACKED},
            "scales has shape",
            integers={"w": np.zeros((2, 5, 8), np.uint32)},
        ),
        Refusal(
            "float_scales", {"x": (3, 64), "scales": (5, 2)}, "takes uint8", {"mode": "mxfp4"}, integers=_EIGHT_WORDS
        ),
        Refusal(
            "fp_biases",
            {"x": (3, 64), "biases": (5, 2)},
            "mode 'mxfp4' has none",
            {"mode": "mxfp4"},
            integers={**_EIGHT_WORDS, "scales": np.zeros((5, 2), np.uint8)},
        ),
        Refusal(
            "int_scales",
            {"x": (3, 64), **_PACKED},
            "scales is int32",
            dtypes={"scales": "int32"},
            integers=_EIGHT_WORDS,
        ),
        Refusal("bias", {"x": (3, 64), **_PACKED, "bias": (64,)}, "bias has shape (64)", integers=_EIGHT_WORDS),
        Refusal(
            "activation", {"x": (3, 64), **_PACKED}, "activation is", {"activation": "tanh"}, integers=_EIGHT_WORDS
        ),
        Refusal("precision", {"x": (3, 64), **_PACKED}, "precision is", {"precision": "fast"}, integers=_EIGHT_WORDS),
        Refusal(
            "complex",
            {"x": (3, 64), **_PACKED},
            "promote to complex64",
            dtypes={"x": "complex64"},
            integers=_EIGHT_WORDS,
        ),
        Refusal(
            "batch",
            {"x": (3, 4, 64), "scales": (2, 5, 1), "biases": (2, 5, 1)},
            "do not broadcast",
            integers={"w": np.zeros((2, 5, 8), np.uint32)},
        ),
        Refusal("ndim", {"x": (1,) * 11 + (3, 64), **_PACKED}, "dimensions", integers=_EIGHT_WORDS),
    ),
    growing=("x",),
    variants=ACTIVATIONS,
)


def _embedding_case(name: str, format: Format, ids: Any, rows: int, columns: int) -> Case:
    table = {"scales": (rows, columns // format.group_size), "biases": (rows, columns // format.group_size)}
    integers = {"ids": np.array(ids, np.int32), "w": random_words(format, (rows,), columns)}
    return Case(name, table, format.keywords, integers)


QUANTIZED_EMBEDDING = OpSpec(
    name="quantized_embedding",
    op=mt.quantized_embedding,
    twin=mt.reference.quantized_embedding,
    oracle=quantized_embedding_oracle,
    roundings=lambda _: 2,
    cases=(
        *(_embedding_case(str(f), f, [[3, 0], [-1, 3]], 5, 2 * f.group_size) for f in AFFINE),
        _embedding_case("scalar", _AFFINE4, 2, 5, 64),
        _embedding_case("no_such_row", _AFFINE4, [0, 5, -6, 4, -5, 2**31 - 1, -(2**31)], 5, 64),
        _embedding_case("empty", _AFFINE4, np.zeros((0, 3)), 5, 64),
    ),
    refusals=(
        Refusal("float_ids", {"ids": (3,), **_PACKED}, "ids is float32", integers=_EIGHT_WORDS),
        Refusal(
            "batched",
            {"scales": (2, 5, 1), "biases": (2, 5, 1)},
            "w has shape (2,5,8)",
            integers={"ids": np.zeros(3, np.int32), "w": np.zeros((2, 5, 8), np.uint32)},
        ),
        Refusal("bits", _PACKED, "bits is 7", {"bits": 7}, integers={"ids": np.zeros(3, np.int32), **_EIGHT_WORDS}),
        Refusal(
            "no_biases", {"scales": (5, 1)}, "biases is None", integers={"ids": np.zeros(3, np.int32), **_EIGHT_WORDS}
        ),
    ),
    growing=("scales",),
)

SPECS = (
    QUANTIZED_MATMUL,
    QUANTIZED_EMBEDDING,
)
