"""Attention, its prefix as two arrays so that each has its own gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np

import mlx_tessl as mt

from ..attention_bounds import Arithmetic, Bounds, U
from ..attention_oracle import attend
from .spec import Arrays, Case, Expected, OpSpec, Refusal, Shapes

SCALE = 0.3


def _with_prefix(op: Callable[..., mx.array]) -> Callable[..., mx.array]:
    def call(
        q: mx.array,
        k: mx.array,
        v: mx.array,
        prefix_k: mx.array | None = None,
        prefix_v: mx.array | None = None,
        *,
        scale: float = SCALE,
        **keywords: Any,
    ) -> mx.array:
        prefix = None if prefix_k is None or prefix_v is None else (prefix_k, prefix_v)
        return op(q, k, v, scale=scale, prefix=prefix, **keywords)

    return call


def attention_oracle(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    prefix_k: np.ndarray | None = None,
    prefix_v: np.ndarray | None = None,
    *,
    scale: float = SCALE,
    precision: str | None = None,
    **keywords: Any,
) -> Expected:
    """What the sums may err by is a bound of its own: attention_bounds.py."""
    prefix = None if prefix_k is None or prefix_v is None else (prefix_k, prefix_v)
    a = attend(q, k, v, scale=float(np.float32(scale)), prefix=prefix, **keywords)
    return a.out, Bounds(a, Arithmetic.of("float32", "cpu")).of_sums() / U


def _case(
    name: str,
    size: tuple[int, ...],
    keywords: dict[str, Any] | None = None,
    integers: Arrays | None = None,
    *,
    prefix: int | None = None,
    **shapes: tuple[int, ...],
) -> Case:
    """``size`` is B, query heads, key heads, Tq, Tk, D, Dv."""
    B, Hq, Hkv, Tq, Tk, D, Dv = size
    named: Shapes = {"q": (B, Hq, Tq, D), "k": (B, Hkv, Tk, D), "v": (B, Hkv, Tk, Dv)}
    if prefix is not None:
        named |= {"prefix_k": (Hkv, prefix, D), "prefix_v": (Hkv, prefix, Dv)}
    return Case(name, {**named, **shapes}, keywords or {}, integers or {})


def _bounds(**bounds: list[int]) -> Arrays:
    return {name: np.array(values, np.int32) for name, values in bounds.items()}


def _boolean_mask(*shape: int) -> Arrays:
    """With a query that sees nothing, and a key that nobody sees."""
    mask = np.random.default_rng(4).random(shape) > 0.4
    mask[..., shape[-2] // 2, :] = False
    mask[..., 1] = False
    return {"mask": mask}


_SHAPES = {"q": (2, 4, 3, 8), "k": (2, 2, 5, 8), "v": (2, 2, 5, 6)}

ATTENTION = OpSpec(
    name="attention",
    op=_with_prefix(mt.attention),
    twin=_with_prefix(mt.reference.attention),
    oracle=attention_oracle,
    roundings=lambda _: 1,
    cases=(
        _case("plain", (2, 2, 2, 7, 9, 16, 16)),
        _case("causal", (1, 4, 2, 19, 23, 12, 5), {"mask": "causal"}),
        _case("more_queries_than_keys", (1, 2, 1, 9, 6, 8, 8), {"mask": "causal"}),
        _case("tiles", (1, 2, 1, 110, 205, 20, 17), {"mask": "causal", "window": (120, None)}),
        _case("decode", (2, 6, 2, 1, 130, 24, 24), integers=_bounds(lengths=[130, 40])),
        _case("window", (1, 2, 2, 17, 17, 8, 8), {"window": 3}),
        _case("padding", (3, 2, 1, 8, 8, 8, 8), {}, _bounds(starts=[0, 3, 8], lengths=[5, 8, 8])),
        _case("boolean", (2, 2, 1, 6, 7, 8, 8), {}, _boolean_mask(2, 1, 6, 7)),
        _case("additive", (1, 4, 2, 6, 7, 8, 8), mask=(4, 1, 7)),
        _case("full_additive", (2, 2, 2, 6, 7, 8, 8), mask=(2, 2, 6, 7)),
        _case("sinks", (2, 4, 2, 5, 6, 8, 8), {"mask": "causal"}, sinks=(4,)),
        _case("softcap", (1, 2, 2, 6, 7, 8, 8), {"softcap": 1.5}),
        _case("prefix", (2, 4, 2, 5, 6, 8, 7), {"mask": "causal"}, prefix=3),
        _case(
            "everything",
            (2, 4, 2, 5, 6, 8, 7),
            {"window": (4, 2), "softcap": 2.0, "precision": "exact"},
            _bounds(starts=[2, 0], lengths=[6, 4]),
            prefix=3,
            sinks=(4,),
            mask=(1, 4, 5, 9),
        ),
        _case("prefix_alone", (2, 2, 1, 3, 0, 8, 8), prefix=4),
        _case("no_keys", (2, 2, 1, 3, 0, 8, 8)),
        _case("no_columns", (1, 2, 1, 3, 4, 0, 8)),
        _case("empty_batch", (0, 2, 1, 3, 4, 8, 8)),
        _case("no_queries", (1, 2, 1, 0, 4, 8, 8)),
        _case("no_values", (1, 2, 1, 3, 4, 8, 0)),
    ),
    refusals=(
        Refusal("q", {**_SHAPES, "q": (2, 3, 8)}, "q has shape (2,3,8)"),
        Refusal("batch", {**_SHAPES, "k": (1, 2, 5, 8)}, "k has shape (1,2,5,8)"),
        Refusal("columns", {**_SHAPES, "k": (2, 2, 5, 7)}, "k has shape (2,2,5,7)"),
        Refusal("heads", {**_SHAPES, "q": (2, 3, 3, 8)}, "k has 2 heads; they must divide the 3 of q"),
        Refusal("values", {**_SHAPES, "v": (2, 2, 4, 6)}, "v has shape (2,2,4,6)"),
        Refusal("int", _SHAPES, "promote to int32", dtypes=dict.fromkeys(_SHAPES, "int32")),
        Refusal("scale", _SHAPES, "scale is nan", {"scale": float("nan")}),
        Refusal("mask", {**_SHAPES, "mask": (2, 3, 4)}, "mask has shape (2,3,4)"),
        Refusal("mask_name", _SHAPES, "mask is 'full'", {"mask": "full"}),
        Refusal("int_mask", _SHAPES, "mask has dtype int32", integers={"mask": np.zeros((3, 5), np.int32)}),
        Refusal("window", _SHAPES, "window is -1", {"window": -1}),
        Refusal("half_window", _SHAPES, "window is -2", {"window": (None, -2)}),
        Refusal("lengths", _SHAPES, "lengths has shape (3)", integers=_bounds(lengths=[1, 2, 3])),
        Refusal(
            "float_starts",
            _SHAPES,
            "starts has shape (2) and dtype float32",
            integers={"starts": np.ones(2, np.float32)},
        ),
        Refusal("sinks", {**_SHAPES, "sinks": (2,)}, "sinks has shape (2)"),
        Refusal("int_sinks", _SHAPES, "sinks has shape (4) and dtype int32", integers=_bounds(sinks=[1, 2, 3, 4])),
        Refusal("softcap", _SHAPES, "softcap is 0", {"softcap": 0.0}),
        Refusal(
            "prefix", {**_SHAPES, "prefix_k": (4, 3, 8), "prefix_v": (2, 3, 6)}, "prefix has keys of shape (4,3,8)"
        ),
        Refusal("prefix_length", {**_SHAPES, "prefix_k": (2, 3, 8), "prefix_v": (2, 4, 6)}, "3 keys and 4 values"),
        Refusal("precision", _SHAPES, "precision is 'fast'", {"precision": "fast"}),
    ),
    growing=("q", "k", "v"),
    variants=(
        {},
        {"scale": 0.2},
        {"mask": "causal"},
        {"window": 2},
        {"window": (2, None)},
        {"window": (None, 2)},
        {"softcap": 1.5},
        {"softcap": 0.5},
    ),
)

SPECS = (ATTENTION,)
