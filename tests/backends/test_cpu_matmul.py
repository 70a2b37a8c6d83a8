"""The native matmul against float64, at the seams of its own making: thin and BLAS products, blocks, slices of K.

The bound of an element is K 2^-24 sum |a b| for the float32 sum (any order of K additions), as much again for the
epilogue's few roundings, and one rounding of the result to its dtype.
"""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import numpy as np
import pytest

import mlx_tessl as mt

from ..ops.conformance.spec import activate
from ..ops.layouts import LAYOUTS

DTYPES = [mx.float32, mx.float16, mx.bfloat16]
EPSILON = {mx.float32: 2.0**-24, mx.float16: 2.0**-11, mx.bfloat16: 2.0**-8}
TINY = {mx.float32: 0.0, mx.float16: 2.0**-25, mx.bfloat16: 0.0}

# Thin up to 4 rows; K of one BLAS call 1024; blocks of 32; K sliced from 8192 (few outputs) or by cost (one row).
SHAPES = [
    (1, 1, 1),
    (1, 5000, 700),
    (1, 40, 9000),
    (2, 2049, 33),
    (3, 31, 1023),
    (4, 513, 515),
    (5, 33, 1025),
    (31, 1, 100),
    (3001, 1, 65),
    (33, 65, 31),
    (64, 3, 2049),
    (100, 1100, 300),
    (257, 511, 129),
    (40, 50, 16500),
    (520, 1030, 1040),
]


@pytest.fixture(autouse=True)
def _on_the_cpu() -> Iterator[None]:
    with mx.stream(mx.cpu):
        yield


def exact(x: mx.array) -> np.ndarray:
    return np.array(x.astype(mx.float32)).astype(np.float64)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def assert_within_bound(result: mx.array, z: np.ndarray, magnitude: np.ndarray, K: int, expected: np.ndarray) -> None:
    dtype = result.dtype
    allowed = (2 * K + 16) * 2.0**-24 * (magnitude + np.abs(expected)) + EPSILON[dtype] * np.abs(expected) + TINY[dtype]
    error = np.abs(exact(result) - expected)
    assert np.all(error <= allowed), f"{np.max(error / allowed):.2f} of the bound at {np.argmax(error / allowed)}"


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_plain_product(shape: tuple[int, int, int], dtype: mx.Dtype) -> None:
    M, N, K = shape
    a, b = mx.array(normal(M, K)).astype(dtype), mx.array(normal(K, N, seed=1)).astype(dtype)
    z, magnitude = exact(a) @ exact(b), np.abs(exact(a)) @ np.abs(exact(b))
    for right in (b, mx.contiguous(b.T).T):
        assert_within_bound(mt.matmul(a, right), z, magnitude, K, z)


@pytest.mark.parametrize("shape", [(1, 300, 260), (4, 70, 33), (7, 70, 1030), (70, 1, 33)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout_b", LAYOUTS)
@pytest.mark.parametrize("layout_a", LAYOUTS)
def test_layouts(shape: tuple[int, int, int], dtype: mx.Dtype, layout_a: str, layout_b: str) -> None:
    M, N, K = shape
    a, b = LAYOUTS[layout_a](normal(M, K), dtype), LAYOUTS[layout_b](normal(K, N, seed=1), dtype)
    z, magnitude = exact(a) @ exact(b), np.abs(exact(a)) @ np.abs(exact(b))
    assert_within_bound(mt.matmul(a, b), z, magnitude, K, z)


@pytest.mark.parametrize("activation", [None, "relu", "silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("shape", [(1, 1030, 40), (3, 600, 9000), (37, 530, 65), (600, 1, 20), (300, 700, 90)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_epilogue(shape: tuple[int, int, int], dtype: mx.Dtype, activation: str | None) -> None:
    M, N, K = shape
    a, b = (mx.array(x).astype(dtype) for x in (normal(M, K) / np.float32(K**0.5), normal(K, N, seed=1)))
    c = LAYOUTS["transposed"](normal(M, N, seed=2), dtype)
    bias = LAYOUTS["strided"](normal(N, seed=3), dtype)
    result = mt.matmul(a, b, c, alpha=0.75, beta=-1.5, bias=bias, activation=activation)
    z = 0.75 * exact(a) @ exact(b) - 1.5 * exact(c) + exact(bias)
    magnitude = 0.75 * np.abs(exact(a)) @ np.abs(exact(b)) + 1.5 * np.abs(exact(c)) + np.abs(exact(bias))
    assert_within_bound(result, z, 1.13 * magnitude, K, activate(z, activation))


@pytest.mark.parametrize("M", [1, 40])
def test_residual_is_added_after_the_activation(M: int) -> None:
    x, weight, residual = mx.array(normal(M, 50)), mx.array(normal(60, 50, seed=1)), mx.array(normal(M, 60, seed=2))
    result = mt.linear(x, weight, activation="relu", residual=residual)
    z = exact(x) @ exact(weight).T
    magnitude = np.abs(exact(x)) @ np.abs(exact(weight)).T
    assert_within_bound(result, z, magnitude, 50, np.maximum(z, 0) + exact(residual))


@pytest.mark.parametrize("shape", [(1, 2000, 4096), (40, 50, 16384), (64, 300, 4096)], ids=str)
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
def test_the_sum_is_rounded_once(shape: tuple[int, int, int], dtype: mx.Dtype) -> None:
    """The second half of K cancels the first: a rounding of what stands between them would show."""
    M, N, K = shape
    a = np.concatenate([np.ones((M, K // 2)), -np.ones((M, K // 2))], axis=1).astype(np.float32)
    b = np.concatenate([normal(K // 2, N)] * 2)
    small = mx.array(b).astype(dtype)
    b16 = np.array(small.astype(mx.float32))
    b16[-1] += 0.5
    small = mx.array(b16).astype(dtype)
    z = a.astype(np.float64) @ exact(small)
    assert_within_bound(mt.matmul(mx.array(a).astype(dtype), small), z, np.abs(a) @ np.abs(exact(small)), 64, z)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
def test_every_product_of_two_numbers_is_rounded_to_nearest_even(dtype: mx.Dtype) -> None:
    """K = 1: the sum is one product, exact in float32, and its rounding is MLX's. Denormals, infinities, NaN too."""
    rng = np.random.default_rng(0)
    bits = mx.array(rng.integers(0, 2**16, (2, 1024), np.uint16))
    a, b = mx.view(bits[0], dtype)[:, None], mx.view(bits[1], dtype)[None, :]
    result = mt.matmul(a, b)
    expected = (a.astype(mx.float32) * b.astype(mx.float32)).astype(dtype)
    assert mx.array_equal(result, expected, equal_nan=True).item()


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
def test_every_number_passes_unchanged(dtype: mx.Dtype) -> None:
    x = mx.view(mx.arange(2**16).astype(mx.uint16), dtype)
    result = mt.matmul(x[:, None], mx.ones((1, 1), dtype))[:, 0]
    assert mx.array_equal(result, x, equal_nan=True).item()


@pytest.mark.parametrize("N", [1, 48, 1500])
@pytest.mark.parametrize("K", [1, 96, 1300])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_batch_invariant_rows_do_not_know_each_other(N: int, K: int, layout: str) -> None:
    a, b = mx.array(normal(70, K)), LAYOUTS[layout](normal(K, N, seed=1), mx.float32)
    whole = mt.matmul(a, b, batch_invariant=True)
    for rows in (slice(0, 1), slice(69, 70), slice(3, 5), slice(1, 38)):
        for some in (a[rows], mx.contiguous(a[rows].T).T):
            assert mx.array_equal(mt.matmul(some, b, batch_invariant=True), whole[rows]).item(), rows


def test_rows_of_addends_that_are_broadcast() -> None:
    a, b, c = mx.array(normal(2, 45, 20)), mx.array(normal(20, 600, seed=1)), mx.array(normal(2, 1, 600, seed=2))
    result = mt.matmul(a, b, c, beta=2.0)
    z = exact(a) @ exact(b) + 2 * exact(c)
    assert_within_bound(result, z, np.abs(exact(a)) @ np.abs(exact(b)) + 2 * np.abs(exact(c)), 20, z)


def test_operands_that_repeat_one_row_or_column() -> None:
    for M in (3, 50):
        a = mx.broadcast_to(mx.array(normal(1, 64)), (M, 64))
        b = mx.broadcast_to(mx.array(normal(64, 1, seed=1)), (64, 90))
        z = exact(a) @ exact(b)
        assert_within_bound(mt.matmul(a, b), z, np.abs(exact(a)) @ np.abs(exact(b)), 64, z)
