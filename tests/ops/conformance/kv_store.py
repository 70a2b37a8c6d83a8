"""Storing keys and values."""

from __future__ import annotations

from typing import Any

import numpy as np

import mlx_tessl as mt

from .spec import Arrays, Case, Expected, OpSpec, Refusal


def kv_store_oracle(cache: np.ndarray, new: np.ndarray, position: np.ndarray) -> Expected:
    y = cache.copy()
    for index in np.ndindex(*new.shape[:-1]):
        start = int(position[index[0]] if position.ndim else position)
        y[(*index[:-1], (start + index[-1]) % cache.shape[-2])] = new[index]
    return y, np.zeros_like(y)


def _positions(position: Any) -> Arrays:
    return {"position": np.array(position, np.int32)}


KV_STORE = OpSpec(
    name="kv_store",
    op=mt.kv_store,
    twin=mt.reference.kv_store,
    oracle=kv_store_oracle,
    roundings=lambda _: 0,
    cases=(
        Case("one_step", {"cache": (2, 3, 10, 8), "new": (2, 3, 1, 8)}, integers=_positions(4)),
        Case("several", {"cache": (2, 3, 10, 7), "new": (2, 3, 4, 7)}, integers=_positions(2)),
        Case("around_the_end", {"cache": (2, 10, 8), "new": (2, 5, 8)}, integers=_positions(27)),
        Case("one_each", {"cache": (3, 2, 6, 130), "new": (3, 2, 2, 130)}, integers=_positions([0, 5, 9])),
        Case("before_the_start", {"cache": (6, 4), "new": (2, 4)}, integers=_positions(-1)),
        Case("all", {"cache": (6, 4), "new": (6, 4)}, integers=_positions(0)),
        Case("nothing", {"cache": (6, 4), "new": (0, 4)}, integers=_positions(3)),
    ),
    refusals=(
        Refusal("long", {"cache": (2, 4, 8), "new": (2, 5, 8)}, "with S rows at most", integers=_positions(0)),
        Refusal("width", {"cache": (2, 4, 8), "new": (2, 1, 7)}, "new has shape (2,1,7)", integers=_positions(0)),
        Refusal("rank", {"cache": (2, 4, 8), "new": (1, 8)}, "they must be [..., S, D]", integers=_positions(0)),
        Refusal("positions", {"cache": (2, 4, 8), "new": (2, 1, 8)}, "position has", integers=_positions([0, 1, 2])),
        Refusal(
            "float_position",
            {"cache": (2, 4, 8), "new": (2, 1, 8)},
            "position has dtype float32",
            integers={"position": np.zeros((), np.float32)},
        ),
    ),
    growing=("cache", "new"),
)

SPECS = (KV_STORE,)
