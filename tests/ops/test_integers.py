"""Lengths, starts and positions of every dtype of integers: what int32 does not hold lies beyond, it does not wrap."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import mlx_tessl as mt

both = pytest.mark.parametrize("ops", [mt, mt.reference], ids=["op", "twin"])
T = 6

# What the numbers are, and what they mean where 0 .. T is all there is.
WIDE = {
    "int64": (np.array([2**40 + 1, -(2**40) + 3, 4, 2**63 - 1], np.int64), [T, 0, 4, T]),
    "uint32": (np.array([2**31 + 2, 2**32 - 1, 4, 0], np.uint32), [T, T, 4, 0]),
    "uint64": (np.array([2**31 + 2, 2**64 - 1, 4, 2**32], np.uint64), [T, T, 4, T]),
}
each_dtype = pytest.mark.parametrize("dtype", WIDE)


def normal(*shape: int) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(sum(shape)))


def attention(ops: ModuleType, **bounds: mx.array) -> Any:
    return ops.attention(normal(4, 2, 3, 8), normal(4, 2, T, 8), normal(4, 2, T, 8), scale=0.3, **bounds)


def gated_delta(ops: ModuleType, **bounds: mx.array) -> Any:
    q, k, v = normal(4, T, 1, 8), 0.1 * normal(4, T, 1, 8), normal(4, T, 2, 5)
    return ops.gated_delta(q, k, v, -mx.abs(normal(4, T, 2)), mx.abs(normal(4, T, 2)), **bounds)


def causal_conv1d(ops: ModuleType, **bounds: mx.array) -> Any:
    return ops.causal_conv1d(normal(4, T, 5), normal(5, 3), **bounds)


def sparse_max_pool(ops: ModuleType, lengths: mx.array) -> Any:
    return ops.sparse_max_pool(normal(4, T, 8), normal(9, 8), None, lengths)


def arrays(value: Any) -> list[np.ndarray]:
    return [np.array(x) for x in (value if isinstance(value, tuple) else (value,))]


@both
@each_dtype
@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (attention, "lengths"),
        (attention, "starts"),
        (gated_delta, "lengths"),
        (gated_delta, "starts"),
        (causal_conv1d, "lengths"),
        (causal_conv1d, "starts"),
        (sparse_max_pool, "lengths"),
    ],
)
def test_bounds(ops: ModuleType, dtype: str, call: Callable[..., Any], argument: str) -> None:
    given, meant = WIDE[dtype]
    found = arrays(call(ops, **{argument: mx.array(given)}))
    expected = arrays(call(ops, **{argument: mx.array(meant, mx.int32)}))
    assert all(np.array_equal(x, y) for x, y in zip(found, expected, strict=True))


@both
@pytest.mark.parametrize(
    ("starts", "lengths", "rows"),
    [
        ([2, 2**40, -(2**40), 3], [2**40, 1, 2**40 + 2, 2**63 - 1], [range(2, T), (), range(2), range(3, T)]),
        ([2, -(2**63), 0, 5], [-5, 2**63 - 1, -(2**63), 1], [(), (), (), range(5, T)]),
    ],
)
def test_segments(ops: ModuleType, starts: list[int], lengths: list[int], rows: list[Any]) -> None:
    x = normal(T, 3)
    expected = np.array([np.array(x)[list(r)].mean(0) if len(r) else np.zeros(3) for r in rows])
    found = ops.segment_mean(x, mx.array(np.array(starts)), mx.array(np.array(lengths)))
    assert np.abs(np.array(found) - expected).max() <= 1e-6


@both
def test_segments_of_unsigned_numbers(ops: ModuleType) -> None:
    x = normal(T, 3)
    starts, lengths = np.array([1, 2**63, 2**64 - 1], np.uint64), np.array([2**64 - 1, 7, 2], np.uint64)
    found = np.array(ops.segment_mean(x, mx.array(starts), mx.array(lengths)))
    assert np.abs(found[0] - np.array(x)[1:].mean(0)).max() <= 1e-6
    assert not found[1:].any()


def test_gradient_of_a_segment_that_ends_beyond_int32() -> None:
    starts, lengths = mx.array([2, -3], mx.int32), mx.array([2**31 - 1, 5], mx.int32)
    gradient = mx.grad(lambda x: mt.segment_mean(x, starts, lengths).sum())(mx.ones((T, 3)))
    assert np.allclose(np.array(gradient)[:, 0], [0.5, 0.5, 0.25, 0.25, 0.25, 0.25])


@both
@pytest.mark.parametrize("position", [2**31, 2**40 + 1, -(2**31) - 2, 2**63 - 1, -(2**63), 2**31 - 1])
def test_positions_around_a_ring(ops: ModuleType, position: int) -> None:
    cache, new = mx.zeros((2, 7, 3)), mx.ones((2, 2, 3))
    expected = np.zeros((2, 7, 3))
    expected[:, [position % 7, (position + 1) % 7]] = 1
    assert np.array_equal(ops.kv_store(cache, new, mx.array(np.array(position))), expected)
    assert np.array_equal(mt.kv_store(cache, new, position), expected)
    each = mx.array(np.array([position, position]))
    assert np.array_equal(ops.kv_store(cache, new, each), expected)
    kept = mx.grad(lambda x: ops.kv_store(x, new, each).sum())(cache)
    assert np.array_equal(kept, 1 - expected)


@both
def test_unsigned_positions(ops: ModuleType) -> None:
    for dtype in (np.uint32, np.uint64, np.uint8, np.int8):
        number = int(np.iinfo(dtype).max)
        found = ops.kv_store(mx.zeros((300, 3)), mx.ones((1, 3)), mx.array(np.array(number, dtype)))
        assert np.array_equal(np.flatnonzero(np.array(found)[:, 0]), [number % 300])


def test_positions_that_are_none() -> None:
    cache, new = mx.zeros((7, 3)), mx.ones((2, 3))
    with pytest.raises(ValueError, match=r"^\[mlx_tessl.kv_store\] position is 1180591620717411303424; it must fit"):
        mt.kv_store(cache, new, 2**70)
    with pytest.raises(TypeError, match=r"^\[mlx_tessl.kv_store\] position is a float"):
        mt.kv_store(cache, new, 1.0)  # type: ignore[arg-type]
    assert np.array_equal(mt.kv_store(cache, new, np.int64(3)), mt.kv_store(cache, new, 3))


@both
def test_rotary_positions(ops: ModuleType) -> None:
    x, inv_freq = normal(4, 8), mt.rope_inv_freq(8, 1e4)
    expected = ops.rope(x, mx.array([2**31 - 1, -(2**31), 4, 2**31 - 1], mx.int32), inv_freq)
    assert np.array_equal(ops.rope(x, mx.array(WIDE["int64"][0]), inv_freq), expected)


def test_a_window_beyond_int32_is_none() -> None:
    q, k = normal(1, 2, 5, 8), normal(1, 2, 9, 8)
    for window in (2**31, 2**70, (2**40, None), (2**40, 2**31)):
        assert np.array_equal(mt.attention(q, k, k, scale=0.3, window=window), mt.attention(q, k, k, scale=0.3))
    wide = mt.attention(q, k, k, scale=0.3, window=(2, 2**31))
    assert np.array_equal(wide, mt.attention(q, k, k, scale=0.3, window=(2, None)))
