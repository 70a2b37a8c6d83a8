"""Attention of few queries: MLX's sdpa_vector, in one pass and, where keys are split, in two."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mlx_tessl.emulator.runtime import Out

from ..mlx_kernels import Case, MlxKernel, Result
from ..numerics import HOST_TYPE, METAL_TYPE, UNIT_ROUNDOFF, allowed, values
from ..oracles import attention

HEADERS = ("sdpa_vector.h",)
CONSTANTS = {20: False, 21: False, 22: False, 23: False, 24: False, 25: False, 26: 0}


@dataclass(frozen=True)
class Operands:
    """What both forms read, and what comes of it."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    scale: np.float32
    out: np.ndarray
    result: Result

    @staticmethod
    def of(
        dtype: np.dtype,
        heads: int,
        kv_heads: int,
        queries: int,
        keys: int,
        D: int,
        V: int,
        causal: bool,
        partial: float,
    ) -> Operands:
        """`partial` is what each weighted sum is rounded by, relatively, before the last one."""
        q = values(dtype, heads, queries, D, seed=1)
        k = values(dtype, kv_heads, keys, D, seed=2)
        v = values(dtype, kv_heads, keys, V, seed=3)
        out = np.empty((heads, queries, V), dtype)
        scale = np.float32(D**-0.5)
        expected, magnitude, score = attention(q, k, v, float(scale), causal)
        # An error of a score changes its weight and the sum of weights by as much, relative to them.
        roundings = 2 * D * score + keys + 16 + 2.0**24 * partial
        return Operands(
            q, k, v, scale, out, Result("out", out, expected, allowed(dtype, expected, magnitude, roundings))
        )

    def strides(self) -> tuple[np.generic, ...]:
        """Of heads and rows of keys, and of values."""
        (_, keys, D), V = self.k.shape, self.v.shape[-1]
        return np.uint64(keys * D), np.uint64(D), np.uint64(keys * V), np.uint64(V)


def sdpa_vector(
    dtype: np.dtype, heads: int, kv_heads: int, queries: int, keys: int, D: int, V: int, causal: bool = False
) -> Case:
    """One threadgroup of 32 simdgroups for each query."""
    name = f"sdpa_vector_{HOST_TYPE[dtype]}_{D}_{V}"
    x = Operands.of(dtype, heads, kv_heads, queries, keys, D, V, causal, 0.0)
    operands = (x.q, x.k, x.v, Out(x.out), np.int32(heads // kv_heads), np.int32(keys), *x.strides(), x.scale)
    return Case(
        MlxKernel(name, f"sdpa_vector<{METAL_TYPE[dtype]}, {D}, {V}>", HEADERS),
        dict(enumerate(operands)),
        grid=(heads, queries),
        group=(1024,),
        results=(x.result,),
        constants=CONSTANTS | {22: causal},
    )


def sdpa_two_passes(
    dtype: np.dtype, heads: int, kv_heads: int, queries: int, keys: int, D: int, blocks: int, causal: bool = False
) -> tuple[Case, Case]:
    """Keys are dealt out to `blocks` threadgroups, whose sums, in `dtype`, a second kernel puts together."""
    x = Operands.of(dtype, heads, kv_heads, queries, keys, D, D, causal, UNIT_ROUNDOFF[dtype])
    partials = np.empty((heads, queries, blocks, D), dtype)
    sums, greatest = (np.empty((heads, queries, blocks), np.float32) for _ in range(2))
    operands = (x.q, x.k, x.v, Out(partials), Out(sums), Out(greatest))
    metal, host = METAL_TYPE[dtype], HOST_TYPE[dtype]
    first = Case(
        MlxKernel(f"sdpa_vector_2pass_1_{host}_{D}_{D}", f"sdpa_vector_2pass_1<{metal}, {D}, {D}>", HEADERS),
        dict(enumerate(operands)) | dict(enumerate((np.int32(keys), *x.strides(), x.scale), start=7)),
        grid=(kv_heads, 1, blocks),
        group=(32, heads // kv_heads, queries),
        results=(),
        constants=CONSTANTS | {22: causal, 26: blocks},
    )
    second = Case(
        MlxKernel(f"sdpa_vector_2pass_2_{host}_{D}", f"sdpa_vector_2pass_2<{metal}, {D}>", HEADERS),
        dict(enumerate((partials, sums, greatest, Out(x.out), np.int32(blocks)))),
        grid=(heads, queries),
        group=(1024,),
        results=(x.result,),
        constants=CONSTANTS,
    )
    return first, second
