"""Attention of many queries on matrix units: MLX's attention_nax."""

from __future__ import annotations

import struct

import numpy as np

from mlx_tessl.emulator.runtime import Out

from ..mlx_kernels import Case, MlxKernel, Result
from ..numerics import FLOAT32, METAL_TYPE, TF32, UNIT_ROUNDOFF, allowed, values
from ..oracles import attention

HEADERS = ("steel/attn/kernels/steel_attention_nax.h",)
BQ = 64


def attention_nax(
    dtype: np.dtype, heads: int, kv_heads: int, queries: int, keys: int, D: int, bk: int = 32, causal: bool = False
) -> Case:
    name = f"steel_attention_{dtype.name}_bq{BQ}_bk{bk}_bd{D}_bv{D}_wm4_wn1_mask{dtype.name}"
    metal = METAL_TYPE[dtype]
    template = f"attention_nax<{metal}, {BQ}, {bk}, {D}, {D}, 4, 1, {metal}, float>"
    q = values(dtype, heads, queries, D, seed=1)
    k = values(dtype, kv_heads, keys, D, seed=2)
    v = values(dtype, kv_heads, keys, D, seed=3)
    out = np.empty_like(q)
    scale = np.float32(D**-0.5)
    strides = [(x.size, x[0].size, D) for x in (q, k, v, out)]
    blocks_q, blocks_k = -(-queries // BQ), -(-keys // bk)
    params = struct.pack(
        "<6if7i12q", 1, heads, D, queries, keys, heads // kv_heads, scale, blocks_q, blocks_k,
        queries // BQ, keys // bk, queries % BQ, keys % bk, keys - queries, *(n for s in strides for n in s),
    )  # fmt: skip
    expected, magnitude, score = attention(q, k, v, float(scale), causal)
    # As sdpa_vector; weights are rounded to dtype, or to tf32 like every float32 operand here.
    operand = 2 * TF32 if dtype == FLOAT32 else 0.0
    roundings = 2 * (D + operand) * score + keys + 16 + operand + 2.0**24 * UNIT_ROUNDOFF[dtype]
    return Case(
        MlxKernel(name, template, HEADERS, msl=400),
        {0: q, 1: k, 2: v, 3: Out(out), 4: params},
        grid=(blocks_q, heads, 1),
        group=(32, 4, 1),
        results=(Result("out", out, expected, allowed(dtype, expected, magnitude, roundings)),),
        constants={200: queries % BQ == 0, 201: keys % bk == 0, 300: False, 301: causal, 302: False, 303: False},
    )
