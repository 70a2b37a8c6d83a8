"""The gated delta rule and its convolution. Decays and strengths are made of the arrays, so that they are in range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np

import mlx_tessl as mt

from .. import gated_delta_oracle as oracle
from .spec import Case, Expected, OpSpec, Refusal, Shapes

Op = Callable[..., tuple[mx.array, mx.array]]


def _in_range(op: Op) -> Op:
    def call(
        q: mx.array,
        k: mx.array,
        v: mx.array,
        g: mx.array | None = None,
        beta: mx.array | None = None,
        state: mx.array | None = None,
        a: mx.array | None = None,
        b: mx.array | None = None,
        A_log: mx.array | None = None,
        dt_bias: mx.array | None = None,
        **keywords: Any,
    ) -> tuple[mx.array, mx.array]:
        if a is None or b is None or A_log is None or dt_bias is None:
            if isinstance(g, mx.array) and isinstance(beta, mx.array):
                g, beta = -mx.square(g.astype(mx.float32)), mx.sigmoid(beta.astype(mx.float32))
            y, last = op(q, k, v, g, beta, state, **keywords)
        else:
            y, last = op(q, k, v, state=state, gates=(a, b, A_log, dt_bias), **keywords)
        return y, last.astype(y.dtype)  # it is float32, which test_gated_delta.py holds it to

    return call


def gated_delta_oracle(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    g: np.ndarray | None = None,
    beta: np.ndarray | None = None,
    state: np.ndarray | None = None,
    a: np.ndarray | None = None,
    b: np.ndarray | None = None,
    A_log: np.ndarray | None = None,
    dt_bias: np.ndarray | None = None,
    *,
    normalize_qk: bool = True,
) -> list[Expected]:
    if a is not None and b is not None and A_log is not None and dt_bias is not None:
        g, beta = oracle.gates(a, b, A_log, dt_bias)
    else:
        assert g is not None
        assert beta is not None
        g, beta = -np.square(g), 1 / (1 + np.exp(-beta))
    results = oracle.recurrence(q, k, v, g, beta, state, normalize_qk=normalize_qk)
    bounds = oracle.recurrence_bounds(q, k, v, g, beta, state, normalize_qk=normalize_qk)
    return list(zip(results, bounds, strict=True))


def _shapes(B: int, T: int, Hk: int, Hv: int, Dk: int, Dv: int, state: tuple[int, ...] | None = None) -> Shapes:
    shapes: Shapes = {
        "q": (B, T, Hk, Dk),
        "k": (B, T, Hk, Dk),
        "v": (B, T, Hv, Dv),
        "g": (B, T, Hv),
        "beta": (B, T, Hv),
    }
    return shapes if state is None else {**shapes, "state": (*state, Hv, Dv, Dk)}


def _gated(shapes: Shapes) -> Shapes:
    (B, T, Hv, _), kept = shapes["v"], {name: shape for name, shape in shapes.items() if name not in {"g", "beta"}}
    return {**kept, "a": (B, T, Hv), "b": (B, T, Hv), "A_log": (Hv,), "dt_bias": (Hv,)}


_NORMALIZED = {"normalize_qk": True}

# Long enough for the shaders to go by chunks.
CHUNKS = Case("chunks", _shapes(1, 70, 1, 2, 40, 21, (1,)), _NORMALIZED)

_FEW = _shapes(2, 2, 1, 2, 6, 5)

GATED_DELTA = OpSpec(
    name="gated_delta",
    op=_in_range(mt.gated_delta),
    twin=_in_range(mt.reference.gated_delta),
    oracle=gated_delta_oracle,
    roundings=lambda _: 1,
    cases=(
        Case("few_tokens", _FEW, _NORMALIZED),
        Case("chunk", _shapes(2, 9, 1, 2, 6, 5, (2,)), _NORMALIZED),
        Case("step", _shapes(2, 1, 2, 2, 4, 3, (2,)), _NORMALIZED),
        Case("gates", _gated(_shapes(2, 7, 1, 2, 6, 5, (2,))), _NORMALIZED),
        Case("shared_state", _shapes(2, 5, 1, 1, 4, 3, ()), _NORMALIZED),
        Case("state_for_all", _shapes(2, 5, 1, 1, 4, 3, (1,)), _NORMALIZED),
        Case("no_tokens", _shapes(2, 0, 1, 2, 4, 3, (2,)), _NORMALIZED),
        Case("empty_batch", _shapes(0, 5, 1, 2, 4, 3), _NORMALIZED),
    ),
    refusals=(
        Refusal("ndim", {**_FEW, "q": (2, 2, 6)}, "q has shape (2,2,6)"),
        Refusal("k", {**_FEW, "k": (2, 2, 1, 5)}, "k has shape (2,2,1,5); it must be that of q"),
        Refusal("v", {**_FEW, "v": (2, 3, 2, 5)}, "v has shape (2,3,2,5)"),
        Refusal("heads", {**_FEW, "q": (2, 2, 3, 6), "k": (2, 2, 3, 6)}, "q has 3 heads; they must divide the 2 of v"),
        Refusal("no_columns", _shapes(2, 2, 1, 2, 0, 5), "their rows must not be empty"),
        Refusal("g", {**_FEW, "g": (2, 2, 1)}, "g has shape (2,2,1); it must be (2,2,2)"),
        Refusal("beta", {**_FEW, "beta": (2, 2)}, "beta has shape (2,2)"),
        Refusal("state", {**_FEW, "state": (3, 2, 5, 6)}, "state has shape (3,2,5,6); it must be (2,2,5,6)"),
        Refusal(
            "complex_state",
            {**_FEW, "state": (2, 2, 5, 6)},
            "state has dtype complex64; it must be real",
            dtypes={"state": "complex64"},
        ),
        Refusal("neither", {name: _FEW[name] for name in "qkv"}, "either g and beta, or gates"),
        Refusal("int", _FEW, "int32", dtypes=dict.fromkeys("qkv", "int32")),
        Refusal("starts", _FEW, "starts has shape (3)", integers={"starts": np.zeros(3, np.int32)}),
        Refusal("lengths", _FEW, "lengths has dtype float32", integers={"lengths": np.zeros(2, np.float32)}),
    ),
    growing=("q", "k", "v", "g", "beta"),
    variants=({"normalize_qk": True}, {"normalize_qk": False}),
)


def causal_conv1d_oracle(
    x: np.ndarray, weight: np.ndarray, state: np.ndarray | None = None, *, activation: str | None = "silu"
) -> list[Expected]:
    y, last = oracle.convolution(x, weight, state, activation)
    magnitude, _ = oracle.convolution(np.abs(x), np.abs(weight), None if state is None else np.abs(state), None)
    return [(y, magnitude), (last, np.abs(last))]


_CONVOLUTION = {"x": (2, 5, 9), "weight": (9, 4)}

CAUSAL_CONV1D = OpSpec(
    name="causal_conv1d",
    op=mt.causal_conv1d,
    twin=mt.reference.causal_conv1d,
    oracle=causal_conv1d_oracle,
    roundings=lambda case: 1.13 * case.shapes["weight"][1] + 12,
    cases=(
        Case("plain", _CONVOLUTION),
        Case("state", {**_CONVOLUTION, "state": (2, 3, 9)}),
        Case("no_activation", {**_CONVOLUTION, "state": (2, 3, 9)}, {"activation": None}),
        Case("shared_state", {**_CONVOLUTION, "state": (3, 9)}),
        Case("one_token", {"x": (2, 1, 9), "weight": (9, 4), "state": (1, 3, 9)}),
        Case("wide", {"x": (1, 3, 131), "weight": (131, 2), "state": (1, 1, 131)}),
    ),
    refusals=(
        Refusal("ndim", {**_CONVOLUTION, "x": (5, 9)}, "x has shape (5,9)"),
        Refusal("weight", {**_CONVOLUTION, "weight": (8, 4)}, "weight has shape (8,4)"),
        Refusal("no_taps", {**_CONVOLUTION, "weight": (9, 0)}, "weight has shape (9,0)"),
        Refusal("state", {**_CONVOLUTION, "state": (2, 4, 9)}, "state has shape (2,4,9)"),
        Refusal("activation", _CONVOLUTION, "activation is 'relu'", {"activation": "relu"}),
        Refusal("int", _CONVOLUTION, "int32", dtypes={"x": "int32", "weight": "int32"}),
        Refusal("starts", _CONVOLUTION, "starts has shape (3)", integers={"starts": np.zeros(3, np.int32)}),
        Refusal("lengths", _CONVOLUTION, "lengths has dtype float32", integers={"lengths": np.zeros(2, np.float32)}),
    ),
    growing=("x", "state"),
    variants=({"activation": "silu"}, {"activation": None}),
)

SPECS = (GATED_DELTA, CAUSAL_CONV1D)
