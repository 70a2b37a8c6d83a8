"""Attention of many queries: MLX's steel attention on simdgroup matrices, and its forms on matrix units (NAX)."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from mlx_tessl.emulator.runtime import Out

from ..mlx_kernels import Case, MlxKernel, Result
from ..numerics import FLOAT32, METAL_TYPE, TF32, UNIT_ROUNDOFF, allowed, values
from ..oracles import attention


@dataclass(frozen=True)
class Form:
    """A kernel with its tiles: rows of queries and keys, and simdgroups along queries and along columns."""

    function: str  # "{}" stands for the type
    name: str
    header: str
    bq: int
    bk: int
    wn: int = 1
    nax: bool = False

    def kernel(self, dtype: np.dtype, D: int) -> MlxKernel:
        bq, bk, wn, metal = self.bq, self.bk, self.wn, METAL_TYPE[dtype]
        widths = f"{D}" if self.function.endswith("dsplit") else f"{D}, {D}"
        value_width = "" if self.function.endswith("dsplit") else f"_bv{D}"
        return MlxKernel(
            f"{self.name}_{dtype.name}_bq{bq}_bk{bk}_bd{D}{value_width}_wm4_wn{wn}_mask{dtype.name}",
            f"{self.function}<{metal}, {bq}, {bk}, {widths}, 4, {wn}, {metal}, float>",
            (f"steel/attn/kernels/{self.header}",),
            msl=400 if self.nax else 310,
        )


NAX_HEADER = "steel_attention_nax.h"


def steel_form(D: int) -> Form:
    """The tiles that MLX takes for a head dimension."""
    return Form("attention", "steel_attention", "steel_attention.h", 32, 32 if D < 128 else 16)


def nax_form(D: int, bk: int = 32) -> Form:
    if D == 256:
        return Form("attention_nax_dsplit", "steel_attention_dsplit", NAX_HEADER, 64, bk, wn=2, nax=True)
    return Form("attention_nax", "steel_attention", NAX_HEADER, 64, bk, nax=True)


def attend(
    form: Form, dtype: np.dtype, heads: int, kv_heads: int, queries: int, keys: int, D: int, causal: bool = False
) -> Case:
    q = values(dtype, heads, queries, D, seed=1)
    k = values(dtype, kv_heads, keys, D, seed=2)
    v = values(dtype, kv_heads, keys, D, seed=3)
    out = np.empty_like(q)
    scale = np.float32(D**-0.5)
    strides = [(x.size, x[0].size, D) for x in (q, k, v, out)]
    bq, bk = form.bq, form.bk
    blocks_q, blocks_k = -(-queries // bq), -(-keys // bk)
    params = struct.pack(
        "<6if7i12q", 1, heads, D, queries, keys, heads // kv_heads, scale, blocks_q, blocks_k,
        queries // bq, keys // bk, queries % bq, keys % bk, keys - queries, *(n for s in strides for n in s),
    )  # fmt: skip
    expected, magnitude, score = attention(q, k, v, float(scale), causal)
    # As sdpa_vector. On matrix units weights are rounded to dtype, or to tf32 like every float32 operand there.
    operand = 2 * TF32 if form.nax and dtype == FLOAT32 else 0.0
    weight = 2.0**24 * UNIT_ROUNDOFF[dtype] if form.nax else 0.0
    roundings = 2 * (D + operand) * score + keys + 16 + operand + weight
    return Case(
        form.kernel(dtype, D),
        {0: q, 1: k, 2: v, 3: Out(out), 4: params},
        grid=(blocks_q, heads, 1),
        group=(32, 4, form.wn),
        results=(Result("out", out, expected, allowed(dtype, expected, magnitude, roundings)),),
        constants={200: queries % bq == 0, 201: keys % bk == 0, 300: False, 301: causal, 302: False, 303: False},
    )


def steel(dtype: np.dtype, heads: int, kv_heads: int, queries: int, keys: int, D: int, causal: bool = False) -> Case:
    return attend(steel_form(D), dtype, heads, kv_heads, queries, keys, D, causal)


def nax(
    dtype: np.dtype, heads: int, kv_heads: int, queries: int, keys: int, D: int, bk: int = 32, causal: bool = False
) -> Case:
    return attend(nax_form(D, bk), dtype, heads, kv_heads, queries, keys, D, causal)
