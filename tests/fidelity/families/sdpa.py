"""Attention of few queries: MLX's sdpa_vector, one threadgroup of 32 simdgroups for each query."""

from __future__ import annotations

import numpy as np

from mlx_tessl.emulator.runtime import Out

from ..mlx_kernels import Case, MlxKernel, Result
from ..numerics import HOST_TYPE, METAL_TYPE, allowed, values
from ..oracles import attention


def sdpa_vector(
    dtype: np.dtype, heads: int, kv_heads: int, queries: int, keys: int, D: int, V: int, causal: bool = False
) -> Case:
    name = f"sdpa_vector_{HOST_TYPE[dtype]}_{D}_{V}"
    q = values(dtype, heads, queries, D, seed=1)
    k = values(dtype, kv_heads, keys, D, seed=2)
    v = values(dtype, kv_heads, keys, V, seed=3)
    out = np.empty((heads, queries, V), dtype)
    scale = np.float32(D**-0.5)
    expected, magnitude, score = attention(q, k, v, float(scale), causal)
    # An error of a score changes its weight and the sum of weights by as much, relative to them.
    roundings = 2 * D * score + keys + 16
    return Case(
        MlxKernel(name, f"sdpa_vector<{METAL_TYPE[dtype]}, {D}, {V}>", ("sdpa_vector.h",)),
        {
            0: q, 1: k, 2: v, 3: Out(out), 4: np.int32(heads // kv_heads), 5: np.int32(keys),
            6: np.uint64(keys * D), 7: np.uint64(D), 8: np.uint64(keys * V), 9: np.uint64(V), 10: scale,
        },
        grid=(heads, queries),
        group=(1024,),
        results=(Result("out", out, expected, allowed(dtype, expected, magnitude, roundings)),),
        constants={20: False, 21: False, 22: causal, 23: False, 24: False, 25: False, 26: 0},
    )  # fmt: skip
