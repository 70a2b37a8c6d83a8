"""D = A B by MLX's steel GEMM, on simdgroup matrices and on matrix units (NAX)."""

from __future__ import annotations

import struct

import numpy as np

from mlx_tessl.emulator.runtime import Out

from ..mlx_kernels import Case, MlxKernel, Result
from ..numerics import FLOAT32, METAL_TYPE, TF32, allowed, f64, values

STEEL = (
    "steel/utils.h",
    "steel/gemm/gemm.h",
    "steel/gemm/kernels/steel_gemm_fused.h",
)
NAX = (
    "steel/utils.h",
    "steel/gemm/gemm_nax.h",
    "steel/gemm/kernels/steel_gemm_fused_nax.h",
)


def tiled_kernel(nax: bool, layout: str, dtype: np.dtype, tile: tuple[int, int, int, int, int]) -> MlxKernel:
    """`layout` is n or t for A and for B; `tile` is BM, BN, BK and the simdgroups along M and N."""
    bm, bn, bk, wm, wn = tile
    transposes = ", ".join(str(letter == "t").lower() for letter in layout)
    template = f"gemm<{METAL_TYPE[dtype]}, {bm}, {bn}, {bk}, {wm}, {wn}, {transposes}, float>"
    family = "steel_gemm_fused_nax" if nax else "steel_gemm_fused"
    name = f"{family}_{layout}_{dtype.name}_{dtype.name}_bm{bm}_bn{bn}_bk{bk}_wm{wm}_wn{wn}"
    return MlxKernel(name, template, NAX if nax else STEEL, msl=400 if nax else 310)


def gemm(
    nax: bool,
    layout: str,
    dtype: np.dtype,
    M: int,
    N: int,
    K: int,
    tile: tuple[int, int, int, int, int],
    swizzle_log: int = 0,
) -> Case:
    bm, bn, bk, wm, wn = tile
    a = values(dtype, *((K, M) if layout[0] == "t" else (M, K)), seed=1)
    b = values(dtype, *((N, K) if layout[1] == "t" else (K, N)), seed=2)
    d = np.empty((M, N), dtype)
    tiles_m, tiles_n = -(-M // bm), -(-N // bn)
    params = struct.pack(
        "<8i3q3i4x", M, N, K, a.shape[1], b.shape[1], N, tiles_n, tiles_m, a.size, b.size, d.size,
        swizzle_log, K // bk, 1,
    )  # fmt: skip
    left, right = (f64(x.T if letter == "t" else x) for x, letter in zip((a, b), layout, strict=True))
    expected, magnitude = left @ right, np.abs(left) @ np.abs(right)
    # One rounding for each of the K additions at most; matrix units take float32 operands as tf32.
    roundings = K + 2 * TF32 if nax and dtype == FLOAT32 else K
    interleave = 1 << swizzle_log
    return Case(
        tiled_kernel(nax, layout, dtype, tile),
        {0: a, 1: b, 3: Out(d), 4: params},
        grid=(tiles_n * interleave, -(-tiles_m // interleave), 1),
        group=(32, wn, wm),
        results=(Result("d", d, expected, allowed(dtype, expected, magnitude, roundings)),),
        constants={10: False, 100: False, 110: False, 200: M % bm == 0, 201: N % bn == 0, 202: K % bk == 0},
    )
