"""int8_matmul against NumPy's int64: every bit, at extreme codes, layouts, and lengths of K."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

import mlx_tessl as mt

from .conformance.int8_matmul import codes

LAYOUTS = {
    "contiguous": lambda x: mx.array(x),
    "transposed": lambda x: mx.array(np.ascontiguousarray(x.swapaxes(-1, -2))).swapaxes(-1, -2),
    "gaps": lambda x: mx.array(np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, 3)]))[..., : x.shape[-1]],
    "strided": lambda x: mx.array(np.repeat(x, 2, axis=-1))[..., ::2],
    "reversed": lambda x: mx.array(np.ascontiguousarray(x[..., ::-1]))[..., ::-1],
}


def exact(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a.astype(np.int64) @ b.astype(np.int64)


@pytest.mark.parametrize("op", [mt.int8_matmul, mt.reference.int8_matmul], ids=["op", "twin"])
@pytest.mark.parametrize(
    ("M", "N", "K"),
    [(1, 1, 1), (1, 300, 77), (5, 7, 3), (37, 53, 70), (65, 31, 513), (300, 270, 1030), (6, 64, 4097), (50, 1, 9)],
)
def test_every_bit(op: object, M: int, N: int, K: int) -> None:
    a, b = codes(M, K), codes(K, N, seed=1)
    result = op(mx.array(a), mx.array(b), stream=mx.cpu)  # type: ignore[operator]
    assert result.dtype == mx.int32
    assert np.array_equal(np.array(result), exact(a, b))


@pytest.mark.parametrize("a_layout", LAYOUTS)
@pytest.mark.parametrize("b_layout", LAYOUTS)
def test_layouts(a_layout: str, b_layout: str) -> None:
    a, b = codes(2, 37, 45), codes(2, 45, 29, seed=1)
    result = mt.int8_matmul(LAYOUTS[a_layout](a), LAYOUTS[b_layout](b), stream=mx.cpu)
    assert np.array_equal(np.array(result), exact(a, b))


@pytest.mark.parametrize("shapes", [((3, 1, 7, 12), (2, 12, 5)), ((7, 12), (4, 12, 5)), ((5, 1, 12), (12, 5))], ids=str)
def test_batches(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = codes(*shapes[0]), codes(*shapes[1], seed=1)
    assert np.array_equal(np.array(mt.int8_matmul(mx.array(a), mx.array(b), stream=mx.cpu)), exact(a, b))


@pytest.mark.parametrize(("x", "y"), [(-128, -128), (-128, 127), (127, 127)])
def test_the_longest_k_at_extreme_codes(x: int, y: int) -> None:
    K = 131071
    a = mx.full((2, K), x, mx.int8)
    for b in (mx.full((K, 3), y, mx.int8), mx.full((3, K), y, mx.int8).T):
        assert np.all(np.array(mt.int8_matmul(a, b, stream=mx.cpu)) == x * y * K)


@pytest.mark.parametrize("dtype", [mx.int32, mx.float32, mx.float16, mx.bfloat16])
def test_dtype(dtype: mx.Dtype) -> None:
    a, b = codes(9, 20), codes(20, 11, seed=1)
    result = mt.int8_matmul(mx.array(a), mx.array(b), dtype=dtype, stream=mx.cpu)
    assert result.dtype == dtype
    expected = mx.array(exact(a, b).astype(np.int32))
    assert mx.array_equal(result, expected.astype(mx.float32).astype(dtype))


def test_dtype_follows_scales_and_activation() -> None:
    a, b = mx.array(codes(3, 4)), mx.array(codes(4, 5))
    half = mx.ones((3,), mx.float16)
    assert mt.int8_matmul(a, b, activation="relu", stream=mx.cpu).dtype == mx.float32
    assert mt.int8_matmul(a, b, scale_a=half, stream=mx.cpu).dtype == mx.float16
    assert mt.int8_matmul(a, b, scale_a=half, bias=mx.zeros(5), stream=mx.cpu).dtype == mx.float32
    assert mt.int8_matmul(a, b, scale_a=half, dtype=mx.bfloat16, stream=mx.cpu).dtype == mx.bfloat16
    for keywords in (
        {"scale_a": half, "dtype": mx.int32},
        {"activation": "relu", "dtype": mx.int32},
        {"dtype": mx.int8},
    ):
        with pytest.raises(ValueError, match=r"^\[mlx_tessl.int8_matmul\] dtype is"):
            mt.int8_matmul(a, b, **keywords)  # type: ignore[arg-type]


@pytest.mark.parametrize("argument", ["a", "b"])
def test_integers_have_no_gradient(argument: str) -> None:
    operands = {"a": mx.array(codes(3, 4)), "b": mx.array(codes(4, 5))}

    def product(x: mx.array) -> mx.array:
        return mt.int8_matmul(**{**operands, argument: x}, dtype=mx.float32)

    with pytest.raises(ValueError, match=rf"\[mlx_tessl.int8_matmul\] {argument} holds integers"):
        mx.vjp(product, [operands[argument]], [mx.ones((3, 5))])


def test_vmap_and_compile_of_the_exact_product() -> None:
    a, b = codes(4, 3, 9, 20), codes(20, 11, seed=1)
    mapped = mx.vmap(lambda x: mt.int8_matmul(x, mx.array(b)), in_axes=1)(mx.array(a))
    assert np.array_equal(np.array(mapped), exact(a.swapaxes(0, 1), b))
    compiled = mx.compile(mt.int8_matmul, shapeless=True)
    for rows in (9, 4):
        assert np.array_equal(np.array(compiled(mx.array(a[:, :, :rows]), mx.array(b))), exact(a[:, :, :rows], b))
