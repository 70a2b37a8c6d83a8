"""y = x W^T with quantized W: affine and fp4/fp8 with block scales, by vectors, by simdgroup matrices and by NAX."""

from __future__ import annotations

from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np

from mlx_tessl.emulator.runtime import Out

from ..mlx_kernels import Case, MlxKernel, Result
from ..numerics import HOST_TYPE, METAL_TYPE, UNIT_ROUNDOFF, allowed, f64, values

NOTHING = np.zeros(4, np.int64)  # bound where batch shapes and strides go, which these kernels do not read

QMM_TILE = 32
NAX_TILE = 64


@dataclass(frozen=True)
class Weights:
    """[N, K] weights as MLX stores them, and the same in float64."""

    packed: np.ndarray
    scales: np.ndarray
    biases: np.ndarray | None
    exact: np.ndarray
    magnitude: np.ndarray  # of the terms that an element is computed from


def pack(codes: np.ndarray, bits: int) -> np.ndarray:
    """[N, K] codes as little-endian uint32 words."""
    if bits == 4:
        codes = codes[:, ::2] | codes[:, 1::2] << 4
    return np.ascontiguousarray(codes.astype(np.uint8)).view(np.uint32)


def affine_weights(dtype: np.dtype, N: int, K: int, group: int, bits: int) -> Weights:
    codes = np.random.default_rng(5).integers(0, 1 << bits, (N, K), dtype=np.uint8)
    scales = np.abs(values(dtype, N, K // group, seed=6, scale=2.0**-bits))
    biases = values(dtype, N, K // group, seed=7, scale=0.5)
    scaled, bias = np.repeat(f64(scales), group, axis=1) * codes, np.repeat(f64(biases), group, axis=1)
    return Weights(pack(codes, bits), scales, biases, scaled + bias, scaled + np.abs(bias))


def fp_weights(mode: str, N: int, K: int) -> Weights:
    """`mode` is mxfp4, mxfp8 or nvfp4."""
    random = np.random.default_rng(8)
    element = ml_dtypes.float8_e4m3fn if mode == "mxfp8" else ml_dtypes.float4_e2m1fn
    numbers = random.standard_normal((N, K)).astype(np.float32).astype(element)
    group = 16 if mode == "nvfp4" else 32
    if mode == "nvfp4":
        scales = random.uniform(0.01, 2.0, (N, K // group)).astype(ml_dtypes.float8_e4m3fn)
    else:
        scales = np.exp2(random.integers(-4, 3, (N, K // group))).astype(np.float32).astype(ml_dtypes.float8_e8m0fnu)
    exact = f64(numbers) * np.repeat(f64(scales), group, axis=1)
    bits = 8 if mode == "mxfp8" else 4
    return Weights(pack(numbers.view(np.uint8), bits), scales.view(np.uint8), None, exact, np.abs(exact))


def affine_qmv(dtype: np.dtype, M: int, N: int, K: int, group: int = 64, bits: int = 4) -> Case:
    name = f"affine_qmv_{HOST_TYPE[dtype]}_gs_{group}_b_{bits}_batch_0_pr_0_hgs_0_r_4"
    kernel = MlxKernel(name, f"affine_qmv<{METAL_TYPE[dtype]}, {group}, {bits}, false>", AFFINE)
    weights = affine_weights(dtype, N, K, group, bits)
    x, y = values(dtype, M, K, seed=9), np.empty((M, N), dtype)
    buffers = {0: weights.packed, 1: weights.scales, 2: weights.biases, 3: x, 4: Out(y), 5: np.int32(K), 6: np.int32(N)}
    return Case(
        kernel,
        buffers | unused(7, batches_at=(7, 10), last=14),
        grid=(M, -(-N // 8)),
        group=(32, 2),
        results=(product(x, y, weights, weight_rounding=0.0),),
    )


def affine_qmm(dtype: np.dtype, M: int, N: int, K: int, group: int = 64, bits: int = 4, nax: bool = False) -> Case:
    tile = NAX_TILE if nax else QMM_TILE
    aligned = str(N % tile == 0).lower()
    shape = "_bm64_bn64_bk64_wm2_wn2" if nax else ""
    family = "affine_qmm_t_nax" if nax else "affine_qmm_t"
    name = f"{family}_{HOST_TYPE[dtype]}_gs_{group}_b_{bits}{shape}_alN_{aligned}_batch_0"
    template = f"{family}<{METAL_TYPE[dtype]}, {group}, {bits}, {aligned}, false{', 64, 64, 64, 2, 2' if nax else ''}>"
    weights = affine_weights(dtype, N, K, group, bits)
    x, y = values(dtype, M, K, seed=9), np.empty((M, N), dtype)
    buffers = {0: weights.packed, 1: weights.scales, 2: weights.biases, 3: x, 4: Out(y)}
    return Case(
        MlxKernel(name, template, AFFINE_NAX if nax else AFFINE, msl=400 if nax else 310),
        buffers | sizes(5, K, N, M) | unused(8, batches_at=(8, 11), last=15),
        grid=(-(-N // tile), -(-M // tile)),
        group=(32, 2, 2),
        # Weights are dequantized to dtype: scale times code and the sum with the bias are rounded.
        results=(product(x, y, weights, weight_rounding=2 * UNIT_ROUNDOFF[dtype]),),
    )


def affine_qmm_n_nax(dtype: np.dtype, M: int, N: int, K: int, group: int = 64, bits: int = 4) -> Case:
    """y = x W with [K, N] weights, grouped along N."""
    name = f"affine_qmm_n_nax_{HOST_TYPE[dtype]}_gs_{group}_b_{bits}_bm64_bn64_bk64_wm2_wn2_batch_0"
    template = f"affine_qmm_n_nax<{METAL_TYPE[dtype]}, {group}, {bits}, false, 64, 64, 64, 2, 2>"
    stored = affine_weights(dtype, K, N, group, bits)
    weights = replace(stored, exact=stored.exact.T, magnitude=stored.magnitude.T)
    x, y = values(dtype, M, K, seed=9), np.empty((M, N), dtype)
    buffers = {0: weights.packed, 1: weights.scales, 2: weights.biases, 3: x, 4: Out(y)}
    return Case(
        MlxKernel(name, template, AFFINE_NAX, msl=400),
        buffers | sizes(5, K, N, M) | unused(8, batches_at=(8, 11), last=15),
        grid=(-(-N // NAX_TILE), -(-M // NAX_TILE)),
        group=(32, 2, 2),
        results=(product(x, y, weights, weight_rounding=2 * UNIT_ROUNDOFF[dtype]),),
    )


def fp_qmm_nax(mode: str, dtype: np.dtype, M: int, N: int, K: int) -> Case:
    aligned = str(N % NAX_TILE == 0).lower()
    group, bits = (16 if mode == "nvfp4" else 32), (8 if mode == "mxfp8" else 4)
    name = f"{mode}_qmm_t_nax_{HOST_TYPE[dtype]}_gs_{group}_b_{bits}_bm64_bn64_bk64_wm2_wn2_alN_{aligned}_batch_0"
    template = f"fp_qmm_t_nax<{METAL_TYPE[dtype]}, {group}, {bits}, {aligned}, false, 64, 64, 64, 2, 2>"
    weights = fp_weights(mode, N, K)
    x, y = values(dtype, M, K, seed=9), np.empty((M, N), dtype)
    return Case(
        MlxKernel(name, template, FP_NAX, msl=400),
        {0: weights.packed, 1: weights.scales, 2: NOTHING, 3: x, 4: Out(y)}
        | sizes(5, K, N, M)
        | unused(8, batches_at=(8, 11), last=14),
        grid=(-(-N // NAX_TILE), -(-M // NAX_TILE)),
        group=(32, 2, 2),
        # A code times its scale is exact in bfloat16.
        results=(product(x, y, weights, weight_rounding=0.0),),
    )


AFFINE = ("steel/gemm/gemm.h", "quantized_utils.h", "quantized.h")
AFFINE_NAX = ("steel/gemm/gemm_nax.h", "quantized_utils.h", "quantized_nax.h")
FP_NAX = ("steel/gemm/gemm_nax.h", "quantized_utils.h", "fp_quantized_nax.h")


def product(x: np.ndarray, y: np.ndarray, weights: Weights, weight_rounding: float) -> Result:
    expected = f64(x) @ weights.exact.T
    magnitude = np.abs(f64(x)) @ weights.magnitude.T
    roundings = x.shape[1] + 8 + 2.0**24 * weight_rounding
    return Result("y", y, expected, allowed(y.dtype, expected, magnitude, roundings))


def sizes(first: int, *numbers: int) -> dict[int, np.int32]:
    return {first + i: np.int32(n) for i, n in enumerate(numbers)}


def unused(first: int, batches_at: tuple[int, int], last: int) -> dict[int, np.ndarray | np.int32]:
    """Numbers of batch dimensions, 0, and their shapes and strides, which nobody reads then."""
    return {i: np.int32(0) if i in batches_at else NOTHING for i in range(first, last + 1)}
