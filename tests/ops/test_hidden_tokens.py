"""What stands at tokens that an op passes over does not matter to derivatives either, NaN included."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import mlx_tessl as mt

T = 7
STARTS, LENGTHS = np.array([0, 2, 3]), np.array([7, 6, 3])
HIDDEN = np.array([[not start <= t < length for t in range(T)] for start, length in zip(STARTS, LENGTHS, strict=True)])
BOUNDS = {"starts": mx.array(STARTS), "lengths": mx.array(LENGTHS)}
both = pytest.mark.parametrize("ops", [mt, mt.reference], ids=["op", "twin"])


def gated_delta(ops: ModuleType, *x: mx.array) -> Any:
    return ops.gated_delta(*x, **BOUNDS)


def gated_delta_of_gates(ops: ModuleType, *x: mx.array) -> Any:
    q, k, v, a, b = x
    gates = (a, b, mx.array([0.1, -0.2]), mx.array([0.3, 0.1]))
    return ops.gated_delta(q, k, v, gates=gates, normalize_qk=True, **BOUNDS)


def causal_conv1d(ops: ModuleType, *x: mx.array) -> Any:
    return ops.causal_conv1d(*x, **BOUNDS)


def sparse_max_pool(ops: ModuleType, *x: mx.array) -> Any:
    return ops.sparse_max_pool(*x, None, BOUNDS["lengths"])


def attention(ops: ModuleType, *x: mx.array) -> Any:
    k, v = (y.swapaxes(1, 2) for y in x)
    q = mx.random.normal((3, 2, 4, 6), key=mx.random.key(8))
    return ops.attention(q, k, v, scale=0.4, **BOUNDS)


OF_HEADS = [(3, T, 1, 6), (3, T, 1, 6), (3, T, 2, 5), (3, T, 2), (3, T, 2)]
PROBLEMS: list[tuple[Callable[..., Any], list[tuple[int, ...]]]] = [
    (gated_delta, OF_HEADS),
    (gated_delta_of_gates, OF_HEADS),
    (causal_conv1d, [(3, T, 5), (5, 3)]),
    (sparse_max_pool, [(3, T, 5), (8, 5)]),
    (attention, [(3, T, 2, 6), (3, T, 2, 6)]),
]


def inputs(call: Callable[..., Any], shapes: list[tuple[int, ...]], hidden: float) -> tuple[list[mx.array], np.ndarray]:
    unseen = np.arange(T) >= LENGTHS[:, None] if call is sparse_max_pool else HIDDEN
    arrays = []
    for seed, shape in enumerate(shapes):
        x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
        if shape[1] == T:
            x[unseen] = hidden
        arrays.append(mx.array(x))
    return arrays, unseen


def results(value: Any) -> list[mx.array]:
    return list(value) if isinstance(value, tuple) else [value]


@both
@pytest.mark.parametrize(("call", "shapes"), PROBLEMS)
def test_gradients(ops: ModuleType, call: Callable[..., Any], shapes: list[tuple[int, ...]]) -> None:
    def gradients(hidden: float) -> list[np.ndarray]:
        arrays, _ = inputs(call, shapes, hidden)
        outputs = results(call(ops, *arrays))
        cotangents = [mx.random.normal(y.shape, key=mx.random.key(3)) for y in outputs]
        return [np.array(x) for x in mx.vjp(lambda *x: results(call(ops, *x)), arrays, cotangents)[1]]

    expected, found = gradients(0.5), gradients(np.nan)
    _, unseen = inputs(call, shapes, 0.0)
    for ours, theirs in zip(found, expected, strict=True):
        assert np.array_equal(ours, theirs)
        assert ours.any()
        if ours.shape[1] == T:
            assert not ours[unseen].any()


@both
@pytest.mark.parametrize(("call", "shapes"), PROBLEMS)
def test_tangents(ops: ModuleType, call: Callable[..., Any], shapes: list[tuple[int, ...]]) -> None:
    def tangents(hidden: float) -> list[np.ndarray]:
        arrays, _ = inputs(call, shapes, hidden)
        directions = [mx.array(np.cos(np.arange(x.size, dtype=np.float32)).reshape(x.shape)) for x in arrays]
        return [np.array(x) for x in mx.jvp(lambda *x: results(call(ops, *x)), arrays, directions)[1]]

    for ours, theirs in zip(tangents(np.nan), tangents(0.5), strict=True):
        assert np.array_equal(ours, theirs)
