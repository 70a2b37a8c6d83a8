"""Rotary positions."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import mlx_tessl as mt

from .norms import _root_mean_square
from .spec import Arrays, Case, Expected, OpSpec, Refusal


def rope_oracle(
    x: np.ndarray,
    positions: np.ndarray,
    inv_freq: np.ndarray,
    *,
    rotary_dim: int | None = None,
    interleaved: bool = False,
) -> Expected:
    """By complex numbers: a + ib turned by e^(i angle), the angle rounded to float32 as the op defines it."""
    rotary_dim = rotary_dim or x.shape[-1]
    if positions.ndim == 2 and x.ndim > 3:
        positions = positions[(slice(None), *[None] * (x.ndim - 3))]
    angles = (positions[..., None].astype(np.float32) * inv_freq.astype(np.float32)).astype(np.float64)
    first, second = (
        (slice(0, rotary_dim, 2), slice(1, rotary_dim, 2))
        if interleaved
        else (slice(0, rotary_dim // 2), slice(rotary_dim // 2, rotary_dim))
    )
    turned = (x[..., first] + 1j * x[..., second]) * np.exp(1j * angles)
    y, magnitude = x.copy(), np.zeros_like(x)
    y[..., first], y[..., second] = turned.real, turned.imag
    magnitude[..., first] = magnitude[..., second] = np.abs(x[..., first]) + np.abs(x[..., second])
    return y, magnitude


def qk_norm_rope_oracle(
    q: np.ndarray,
    k: np.ndarray,
    q_weight: np.ndarray,
    k_weight: np.ndarray,
    positions: np.ndarray,
    inv_freq: np.ndarray,
    *,
    eps: float,
    weight_offset: float = 0.0,
    rotary_dim: int | None = None,
) -> list[Expected]:
    results = []
    for x, weight in ((q, q_weight), (k, k_weight)):
        y = x / _root_mean_square(x, eps) * (weight + weight_offset)
        turned, magnitude = rope_oracle(y, positions, inv_freq, rotary_dim=rotary_dim)
        results.append((turned, magnitude + np.abs(y)))
    return results


def rope_tables(positions: Any, rotary_dim: int) -> Arrays:
    """Positions, and frequencies that are not differentiated here: their gradients are sums of large terms."""
    inv_freq = 1e4 ** (-np.arange(0, rotary_dim, 2) / rotary_dim)
    return {"positions": np.asarray(positions, np.int32), "inv_freq": inv_freq.astype(np.float32)}


ROPE = OpSpec(
    name="rope",
    op=mt.rope,
    twin=mt.reference.rope,
    oracle=rope_oracle,
    roundings=lambda _: 6,  # 0.5 was used by the CPU code, whose cosine errs by 2 ulp of 1
    cases=(
        Case("heads", {"x": (2, 3, 5, 16)}, integers=rope_tables(np.arange(5), 16)),
        Case("batch", {"x": (2, 3, 4, 24)}, {"rotary_dim": 8}, rope_tables([[0, 1, 2, 3], [7, 9, 11, 500]], 8)),
        Case("ragged", {"x": (3, 37)}, {"rotary_dim": 22}, rope_tables([5, 0, 2000], 22)),
        Case("interleaved", {"x": (2, 3, 32)}, {"interleaved": True}, rope_tables([1, 2, 3], 32)),
        Case("ragged_pairs", {"x": (3, 19)}, {"interleaved": True, "rotary_dim": 10}, rope_tables([1, 2, 3], 10)),
        Case("one_position", {"x": (4, 1, 12)}, integers=rope_tables(17, 12)),
        Case("row", {"x": (600,)}, integers=rope_tables(3, 600)),
        Case("empty", {"x": (2, 0, 8)}, integers=rope_tables(np.zeros(0), 8)),
    ),
    refusals=(
        Refusal("odd", {"x": (3, 8)}, "rotary_dim is 7", {"rotary_dim": 7}, integers=rope_tables([0] * 3, 8)),
        Refusal("wide", {"x": (3, 8)}, "rotary_dim is 10", {"rotary_dim": 10}, integers=rope_tables([0] * 3, 10)),
        Refusal("inv_freq", {"x": (3, 8)}, "inv_freq has shape (3)", integers=rope_tables([0] * 3, 6)),
        Refusal("positions", {"x": (3, 8)}, "positions has shape (2)", integers=rope_tables([0, 1], 8)),
        Refusal("int", {"x": (3, 8)}, "int32", dtypes={"x": "int32"}, integers=rope_tables([0] * 3, 8)),
        Refusal(
            "float_positions",
            {"x": (3, 8)},
            "positions has dtype float32",
            integers={**rope_tables([0] * 3, 8), "positions": np.zeros(3, np.float32)},
        ),
    ),
    growing=("x",),
    variants=({}, {"interleaved": True}),
)

QK_NORM_ROPE = OpSpec(
    name="qk_norm_rope",
    op=partial(mt.qk_norm_rope, eps=1e-6),
    twin=partial(mt.reference.qk_norm_rope, eps=1e-6),
    oracle=partial(qk_norm_rope_oracle, eps=1e-6),
    roundings=lambda case: 22 + case.shapes["q"][-1] / 8,
    cases=(
        Case(
            "heads",
            {"q": (2, 4, 3, 32), "k": (2, 1, 3, 32), "q_weight": (32,), "k_weight": (32,)},
            {"rotary_dim": 8, "weight_offset": 1.0},
            rope_tables([3, 4, 5], 8),
        ),
        Case(
            "ragged",
            {"q": (1, 2, 2, 37), "k": (1, 3, 2, 37), "q_weight": (37,), "k_weight": (37,)},
            {"rotary_dim": 22},
            rope_tables([[3, 4]], 22),
        ),
        Case(
            "decode",
            {"q": (3, 2, 1, 64), "k": (3, 1, 1, 64), "q_weight": (64,), "k_weight": (64,)},
            integers=rope_tables([[7], [100], [3]], 64),
        ),
    ),
    refusals=(
        Refusal(
            "k",
            {"q": (2, 3, 8), "k": (2, 3, 6), "q_weight": (8,), "k_weight": (6,)},
            "k has shape (2,3,6)",
            integers=rope_tables([0] * 3, 8),
        ),
        Refusal(
            "weight",
            {"q": (2, 3, 8), "k": (2, 3, 8), "q_weight": (8,), "k_weight": (6,)},
            "k_weight has shape (6)",
            integers=rope_tables([0] * 3, 8),
        ),
    ),
    growing=("q", "k"),
    variants=({}, {"weight_offset": 0.0}, {"eps": 1e-2}),
)

SPECS = (
    ROPE,
    QK_NORM_ROPE,
)
