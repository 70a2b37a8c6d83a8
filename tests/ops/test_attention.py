"""Attention against float64, its transforms against the twin's, and rows that see no key."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import mlx_tessl as mt
from mlx_tessl import reference
from mlx_tessl.ops import attention

from .attention_oracle import attention_oracle

DTYPES = [mx.float32, mx.float16, mx.bfloat16]
UNIT_ROUNDOFF = {mx.float32: 2.0**-24, mx.float16: 2.0**-11, mx.bfloat16: 2.0**-8}

# B, query heads, key heads, Tq, Tk, D, Dv
SIZES = [
    (1, 1, 1, 1, 1, 1, 1),
    (2, 3, 3, 7, 7, 32, 32),
    (3, 4, 2, 33, 20, 12, 17),
    (2, 6, 1, 1, 130, 64, 64),
    (1, 2, 2, 300, 600, 40, 40),
    (2, 2, 2, 5, 4, 0, 3),
]


def inputs(size: tuple[int, ...], dtype: mx.Dtype = mx.float32, seed: int = 0) -> list[mx.array]:
    """q, k and v as transposed views, which is how projections give them."""
    B, Hq, Hkv, Tq, Tk, D, Dv = size
    rng = np.random.default_rng(seed)
    shapes = [(B, Tq, Hq, D), (B, Tk, Hkv, D), (B, Tk, Hkv, Dv)]
    return [mx.array(rng.standard_normal(s).astype(np.float32)).astype(dtype).swapaxes(1, 2) for s in shapes]


def float64(x: mx.array) -> np.ndarray:
    return np.array(x.astype(mx.float32)).astype(np.float64)


def oracle(q: mx.array, k: mx.array, v: mx.array, scale: float, lengths: list[int] | None) -> np.ndarray:
    query, key, value = (float64(x) for x in (q, k, v))
    key, value = (np.repeat(x, query.shape[1] // x.shape[1], axis=1) for x in (key, value))
    result = np.zeros((*query.shape[:3], value.shape[3]))
    for row in range(len(query)):
        n = key.shape[2] if lengths is None else min(max(lengths[row], 0), key.shape[2])
        if n == 0:
            continue
        scores = scale * query[row] @ key[row, :, :n].swapaxes(-1, -2)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        result[row] = weights / weights.sum(axis=-1, keepdims=True) @ value[row, :, :n]
    return result


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("hidden", [False, True])
def test_result(size: tuple[int, ...], dtype: mx.Dtype, hidden: bool) -> None:
    q, k, v = inputs(size, dtype)
    lengths = [size[4] // 2 + row - 1 for row in range(size[0])] if hidden else None
    scale = max(size[5], 1) ** -0.5
    result = attention(q, k, v, scale=scale, lengths=None if lengths is None else mx.array(lengths))
    assert result.dtype == dtype
    expected = oracle(q, k, v, scale, lengths)
    assert result.shape == expected.shape
    largest = max(1.0, float(np.abs(expected).max()))
    # f32: of the largest magnitude; seen 4e-7.
    assert np.abs(float64(result) - expected).max() <= (2e-6 + UNIT_ROUNDOFF[dtype]) * largest


MASKS = ["none", "causal", "boolean", "additive", "hiding"]
PADDING = {
    "whole": {},
    "right": {"lengths": [7, 0]},
    "left": {"starts": [3, 11]},
    "both": {"lengths": [9, 40], "starts": [-3, 5]},
}
EXTRAS = ["plain", "softcap", "sinks"]


def options(
    mask: str, window: Any, padding: str, extra: str, prefixed: bool, size: tuple[int, ...], seed: int = 3
) -> dict[str, Any]:
    """Keywords of attention, arrays in numpy, for a size of two rows."""
    B, Hq, Hkv, Tq, Tk, D, Dv = size
    rng = np.random.default_rng(seed)
    P = 5 if prefixed else 0
    keywords: dict[str, Any] = {"window": window}
    boolean = rng.random((B, 1, Tq, P + Tk)) > 0.4
    boolean[0, :, Tq // 2] = False
    bias = rng.standard_normal((Hq, 1, P + Tk)).astype(np.float32)
    masks = {"causal": "causal", "boolean": boolean, "additive": bias, "hiding": np.where(boolean, bias, -np.inf)}
    keywords["mask"] = masks.get(mask)
    keywords |= {name: np.array(bounds, np.int32) for name, bounds in PADDING[padding].items()}
    if prefixed:
        keywords["prefix"] = tuple(rng.standard_normal((Hkv, P, n)).astype(np.float32) for n in (D, Dv))
    if extra == "softcap":
        keywords["softcap"] = 1.5
    if extra == "sinks":
        keywords["sinks"] = rng.standard_normal(Hq).astype(np.float32)
    return keywords


def on_device(value: Any, dtype: mx.Dtype = mx.float32) -> Any:
    """Arrays of :func:`options` as MLX's, floats in ``dtype``."""
    if isinstance(value, dict):
        return {name: on_device(x, dtype) for name, x in value.items()}
    if isinstance(value, tuple) and any(isinstance(x, np.ndarray) for x in value):
        return tuple(on_device(x, dtype) for x in value)
    if not isinstance(value, np.ndarray):
        return value
    return mx.array(value).astype(dtype) if value.dtype.kind == "f" else mx.array(value)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("window", [None, 3, (2, None), (None, 1), (0, 0)], ids=str)
@pytest.mark.parametrize("prefixed", [False, True])
def test_options(mask: str, window: Any, prefixed: bool) -> None:
    size = (2, 4, 2, 9, 11, 8, 6)
    q, k, v = inputs(size)
    for padding, extra in itertools.product(PADDING, EXTRAS):
        keywords = options(mask, window, padding, extra, prefixed, size)
        expected = attention_oracle(float64(q), float64(k), float64(v), scale=0.3, **keywords)
        for op in (attention, reference.attention):
            result = op(q, k, v, scale=0.3, **on_device(keywords))
            # Seen: 6e-7.
            assert np.abs(float64(result) - expected).max() <= 5e-6, (op, padding, extra)


@pytest.mark.parametrize("size", SIZES[:5], ids=str)
def test_twin_means_the_same(size: tuple[int, ...]) -> None:
    q, k, v = inputs(size)
    lengths = [size[4] - row for row in range(size[0])]
    result = reference.attention(q, k, v, scale=0.3, lengths=mx.array(lengths))
    # Seen: 2.4e-6, of stock MLX's products, which add in order.
    assert np.abs(float64(result) - oracle(q, k, v, 0.3, lengths)).max() <= 5e-6


def test_odd_strides() -> None:
    q, k, v = inputs((2, 4, 4, 9, 11, 8, 8))
    plain = attention(q, k, v, scale=0.4)
    reversed_keys = attention(q, k[:, :, ::-1], v[:, :, ::-1], scale=0.4)
    assert mx.allclose(plain, reversed_keys, atol=1e-6).item()
    columns = [mx.contiguous(x.swapaxes(-1, -2)).swapaxes(-1, -2) for x in (q, k, v)]
    assert mx.allclose(plain, attention(*columns, scale=0.4), atol=1e-6).item()
    shared = mx.broadcast_to(k[:, :1], k.shape)
    assert mx.allclose(attention(q, shared, v, scale=0.4), attention(q, mx.contiguous(shared), v, scale=0.4)).item()


@pytest.mark.parametrize("scale", [1e4, -1e4, 0.0])
def test_extreme_scales(scale: float) -> None:
    q, k, v = inputs((1, 2, 2, 6, 9, 8, 8))
    result = attention(q, k, v, scale=scale)
    assert np.abs(float64(result) - oracle(q, k, v, scale, None)).max() <= 1e-2 * (scale != 0) + 1e-6


def test_row_does_not_depend_on_its_batch() -> None:
    q, k, v = inputs((3, 2, 2, 40, 40, 32, 32))
    together = attention(q, k, v, scale=0.2, lengths=mx.array([40, 17, 3]))
    for row, length in enumerate((40, 17, 3)):
        alone = attention(q[row : row + 1], k[row : row + 1, :, :length], v[row : row + 1, :, :length], scale=0.2)
        assert mx.array_equal(together[row : row + 1], alone).item()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_hidden_keys_are_not_read(dtype: mx.Dtype) -> None:
    q, k, v = inputs((2, 2, 2, 5, 8, 16, 16), dtype)
    lengths = mx.array([3, 0])
    expected = attention(q, k, v, scale=0.25, lengths=lengths)
    k[:, :, 3:] = float("nan")
    v[:, :, 3:] = float("inf")
    assert mx.array_equal(attention(q, k, v, scale=0.25, lengths=lengths), expected).item()
    assert not expected[1].any().item()


def test_lengths_are_clipped() -> None:
    q, k, v = inputs((2, 2, 2, 5, 8, 16, 16))
    wild = attention(q, k, v, scale=0.25, lengths=mx.array([1000, -7]))
    assert mx.array_equal(wild, attention(q, k, v, scale=0.25, lengths=mx.array([8, 0]))).item()


@pytest.mark.parametrize("dtype", [mx.uint8, mx.int64])
def test_lengths_of_any_integer_type(dtype: mx.Dtype) -> None:
    q, k, v = inputs((2, 2, 2, 5, 8, 16, 16))
    lengths = mx.array([5, 2])
    result = attention(q, k, v, scale=0.25, lengths=lengths.astype(dtype))
    assert mx.array_equal(result, attention(q, k, v, scale=0.25, lengths=lengths)).item()


@pytest.mark.parametrize("size", [(0, 2, 2, 5, 8, 16, 16), (2, 2, 2, 0, 8, 16, 16), (2, 2, 2, 5, 0, 16, 16)], ids=str)
def test_empty(size: tuple[int, ...]) -> None:
    result = attention(*inputs(size), scale=1.0)
    assert result.shape == (size[0], size[1], size[3], size[6])
    assert not result.any().item()


class TestTransforms:
    size = (2, 4, 2, 9, 11, 8, 6)
    lengths = mx.array([7, 0])

    def functions(self, hidden: bool) -> tuple[Callable[..., mx.array], Callable[..., mx.array]]:
        lengths = self.lengths if hidden else None
        return (
            lambda q, k, v: attention(q, k, v, scale=0.3, lengths=lengths),
            lambda q, k, v: reference.attention(q, k, v, scale=0.3, lengths=lengths),
        )

    @pytest.mark.parametrize("hidden", [False, True])
    def test_gradients(self, hidden: bool) -> None:
        ours, theirs = self.functions(hidden)
        primals, (cotangent, *_) = inputs(self.size), inputs((2, 4, 2, 9, 11, 6, 6), seed=1)
        for a, b in zip(mx.vjp(ours, primals, [cotangent])[1], mx.vjp(theirs, primals, [cotangent])[1], strict=True):
            assert mx.abs(a - b).max().item() <= 1e-5
        if hidden:
            query_gradient = mx.vjp(ours, primals, [cotangent])[1][0]
            assert not query_gradient[1].any().item()

    @pytest.mark.parametrize("hidden", [False, True])
    def test_jvp(self, hidden: bool) -> None:
        ours, theirs = self.functions(hidden)
        primals, tangents = inputs(self.size), inputs(self.size, seed=2)
        (a,), (b,) = (mx.jvp(f, primals, tangents)[1] for f in (ours, theirs))
        assert mx.abs(a - b).max().item() <= 1e-5

    @pytest.mark.parametrize("axes", [(0, 0, 0), (0, None, None), (None, 2, None)])
    def test_vmap(self, axes: tuple[int | None, ...]) -> None:
        ours, _ = self.functions(False)
        fixed = inputs(self.size)
        stacks = [x if axis is None else mx.stack([x, 2 * x], axis=axis) for x, axis in zip(fixed, axes, strict=True)]
        doubled = [x if axis is None else 2 * x for x, axis in zip(fixed, axes, strict=True)]
        expected = mx.stack([ours(*fixed), ours(*doubled)])
        assert mx.abs(mx.vmap(ours, in_axes=axes)(*stacks) - expected).max().item() <= 1e-5

    @pytest.mark.parametrize("shapeless", [False, True])
    def test_compile(self, shapeless: bool) -> None:
        ours, _ = self.functions(True)
        compiled = mx.compile(ours, shapeless=shapeless)
        for size in (self.size, (2, 4, 2, 5, 13, 8, 6)):
            arrays = inputs(size)
            assert mx.array_equal(compiled(*arrays), ours(*arrays)).item()

    def test_scales_are_told_apart(self) -> None:
        arrays = inputs(self.size)
        several = mx.compile(lambda q, k, v: [attention(q, k, v, scale=s) for s in (0.1, 0.2)])
        one, two = several(*arrays)
        assert not mx.allclose(one, two).item()


def test_a_cpu_computes_it_natively_and_the_twin_does_not() -> None:
    arrays = inputs((1, 2, 2, 5, 8, 16, 16))
    with mt.trace() as entries:
        mx.eval(attention(*arrays, scale=1.0, stream=mx.cpu))
    assert [entry.op for entry in entries] == ["mlx_tessl.attention"]
    with mt.trace() as entries, mt.use_reference():
        mx.eval(attention(*arrays, scale=1.0, stream=mx.cpu))
    assert entries == []


@pytest.mark.parametrize("device", [("m1", "15.0"), ("m5", "26.2")], ids=str)
@pytest.mark.parametrize("mask", MASKS)
def test_emulation_runs_the_kernels(device: tuple[str, str], mask: str) -> None:
    size = (2, 4, 2, 9, 11, 16, 8)
    keywords = on_device(options(mask, (4, 2), "right", "softcap", True, size))
    arrays = inputs(size)
    with mt.trace() as entries, mt.emulate(*device):
        emulated = attention(*arrays, scale=0.25, **keywords, stream=mx.cpu)
        mx.eval(emulated)
    assert [entry.op for entry in entries] == ["mlx_tessl.attention"]
    plain = attention(*arrays, scale=0.25, **keywords, stream=mx.cpu)
    assert mx.allclose(emulated, plain, atol=1e-5).item()


@pytest.mark.parametrize("size", [(2, 4, 2, 9, 11, 16, 8), (1, 2, 1, 3, 0, 8, 4), (1, 2, 2, 0, 4, 8, 8)], ids=str)
def test_emulation_runs_the_gradients(size: tuple[int, ...]) -> None:
    _, Hq, Hkv, _, Tk, D, Dv = size
    rng = np.random.default_rng(5)
    shapes = [(Hkv, 3, D), (Hkv, 3, Dv), (Hq,), (Hq, 1, 3 + Tk)]
    primals = [*inputs(size), *(mx.array(rng.standard_normal(shape).astype(np.float32)) for shape in shapes)]

    def all_operands(q: mx.array, k: mx.array, v: mx.array, *others: mx.array) -> mx.array:
        prefix_k, prefix_v, sinks, mask = others
        return attention(q, k, v, scale=0.3, prefix=(prefix_k, prefix_v), sinks=sinks, mask=mask, stream=mx.cpu)

    cotangent = [mx.array(rng.standard_normal(all_operands(*primals).shape).astype(np.float32))]
    plain = mx.vjp(all_operands, primals, cotangent)[1]
    mx.eval(plain)
    with mt.trace() as entries, mt.emulate("m1", "15.0"):
        emulated = mx.vjp(all_operands, primals, cotangent)[1]
        mx.eval(emulated)
    assert "mlx_tessl.attention_grad" in {entry.op for entry in entries}
    for a, b in zip(emulated, plain, strict=True):
        assert mx.allclose(a, b, atol=1e-5).item()


@pytest.mark.parametrize("Dv", [0, 3])
def test_emulated_without_values_or_keys(Dv: int) -> None:
    arrays = inputs((1, 2, 1, 3, 5 if Dv == 0 else 0, 8, Dv))
    with mt.emulate("m1", "15.0"):
        assert not attention(*arrays, scale=0.3, stream=mx.cpu).any().item()


@pytest.mark.parametrize(
    ("shapes", "lengths", "message"),
    [
        ([(2, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8)], None, "q has shape (2,4,8)"),
        ([(1, 2, 4, 8), (2, 2, 4, 8), (2, 2, 4, 8)], None, "k has shape (2,2,4,8)"),
        ([(1, 2, 4, 8), (1, 2, 4, 7), (1, 2, 4, 8)], None, "k has shape (1,2,4,7)"),
        ([(1, 3, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8)], None, "k has 2 heads; they must divide the 3 of q"),
        ([(1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 5, 8)], None, "v has shape (1,2,5,8)"),
        ([(1, 2, 4, 8)] * 3, mx.array([1.0]), "lengths has shape (1) and dtype float32"),
        ([(1, 2, 4, 8)] * 3, mx.array([1, 2]), "it must be 1 integers"),
    ],
)
def test_refusals(shapes: list[tuple[int, ...]], lengths: mx.array | None, message: str) -> None:
    with pytest.raises(ValueError, match=r"^\[mlx_tessl\.attention\]") as raised:
        attention(*(mx.zeros(shape) for shape in shapes), scale=1.0, lengths=lengths)
    assert message in str(raised.value)


def test_refuses_integers() -> None:
    with pytest.raises(ValueError, match="promote to int32"):
        attention(*(mx.zeros((1, 2, 4, 8), mx.int32) for _ in range(3)), scale=1.0)
