"""Attention against float64, its transforms against the twin's, and rows that see no key."""

from __future__ import annotations

import itertools
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import mlx_tessl as mt
from mlx_tessl import reference
from mlx_tessl.ops import attention

from .attention_bounds import Arithmetic, Bounds, summed_to, used
from .attention_oracle import attend, attention_oracle

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
    (1, 2, 1, 33, 40, 72, 80),
    (1, 2, 1, 9, 70, 512, 256),
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


def rounded(value: Any, dtype: mx.Dtype) -> Any:
    """Arrays of :func:`options` with floats that ``dtype`` holds."""
    if isinstance(value, tuple) and any(isinstance(x, np.ndarray) for x in value):
        return tuple(rounded(x, dtype) for x in value)
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        return value
    return np.array(mx.array(value).astype(dtype).astype(mx.float32))


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


def with_gradients(cotangent: mx.array, *arrays: mx.array, **keywords: Any) -> list[mx.array]:
    """The result for ``q, k, v`` and its gradients by these."""
    outputs, gradients = mx.vjp(lambda q, k, v: attention(q, k, v, **keywords), list(arrays), [cotangent])
    return [*outputs, *gradients]


def gradients_by_name(
    keywords: dict[str, Any], primals: dict[str, mx.array], cotangent: mx.array
) -> dict[str, mx.array]:
    """The gradients of attention by each of ``primals``, which take the place of what ``keywords`` has."""
    names = list(primals)

    def call(*arrays: mx.array) -> mx.array:
        given = dict(zip(names, arrays, strict=True))
        others = {**keywords, **{name: given[name] for name in ("sinks", "mask") if name in given}}
        if "prefix_k" in given:
            others["prefix"] = (given["prefix_k"], given["prefix_v"])
        return attention(given["q"], given["k"], given["v"], scale=0.3, **others)

    return dict(zip(names, mx.vjp(call, list(primals.values()), [cotangent])[1], strict=True))


def bounds(arrays: list[mx.array], scale: float = 0.3, **keywords: Any) -> Bounds:
    """What our native code may err by."""
    dtype = str(arrays[0].dtype).removeprefix("mlx.core.")
    a = attend(*(float64(x) for x in arrays), scale=float(np.float32(scale)), **keywords)
    return Bounds(a, Arithmetic.of(dtype, "cpu"))


def gradients_used(arrays: list[mx.array], keywords: dict[str, Any]) -> dict[str, float]:
    """The largest share of its bound that each gradient uses; in float32 it is within 1e-4 of its largest element."""
    q, k, v = arrays
    shape = (*q.shape[:3], v.shape[3])
    cotangent = mx.array(np.random.default_rng(1).standard_normal(shape).astype(np.float32)).astype(q.dtype)
    primals = {"q": q, "k": k, "v": v}
    keywords = {name: x if name == "sinks" else rounded(x, q.dtype) for name, x in keywords.items()}
    if "prefix" in keywords:
        primals |= dict(zip(("prefix_k", "prefix_v"), on_device(keywords["prefix"], q.dtype), strict=True))
    b, dout = bounds(arrays, **keywords), float64(cotangent)
    expected, allowed = b.a.gradients(dout), b.gradients(dout)
    mask = keywords.get("mask")
    if isinstance(mask, np.ndarray) and mask.dtype != np.bool_:
        primals["mask"] = on_device(mask, q.dtype)
        expected["mask"], allowed["mask"] = summed_to(expected["mask"], mask.shape), b.mask(dout, mask.shape)
    if "sinks" in keywords:
        primals["sinks"] = on_device(keywords["sinks"])
    shares = {}
    for name, gradient in gradients_by_name(on_device(keywords), primals, cotangent).items():
        shares[name] = used(float64(gradient), expected[name], allowed[name])
        if q.dtype == mx.float32:
            largest = max(1e-2, np.abs(expected[name]).max(initial=0.0))
            assert np.abs(float64(gradient) - expected[name]).max(initial=0.0) <= 1e-4 * largest, name  # seen: 6e-6
    return shares


def check_gradients(arrays: list[mx.array], keywords: dict[str, Any]) -> None:
    shares = gradients_used(arrays, keywords)
    assert all(share <= 1.0 for share in shares.values()), shares


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("window", [None, (2, None), (0, 0)], ids=str)
@pytest.mark.parametrize("prefixed", [False, True])
def test_gradients_of_options(mask: str, window: Any, prefixed: bool) -> None:
    size = (2, 4, 2, 9, 11, 8, 6)
    for padding, extra in itertools.product(PADDING, EXTRAS):
        check_gradients(inputs(size), options(mask, window, padding, extra, prefixed, size))


@pytest.mark.parametrize("size", [(1, 4, 2, 150, 210, 20, 12), (2, 3, 1, 97, 100, 64, 33)], ids=str)
@pytest.mark.parametrize("mask", MASKS)
def test_several_tiles(size: tuple[int, ...], mask: str) -> None:
    keywords = options(mask, (90, 3), "left" if size[0] == 2 else "whole", "sinks", True, size)
    q, k, v = inputs(size)
    b = bounds([q, k, v], **keywords)
    result = float64(attention(q, k, v, scale=0.3, **on_device(keywords)))
    assert used(result, b.a.out, b.out()) <= 1.0
    assert np.abs(result - b.a.out).max() <= 2e-5 * np.abs(b.a.out).max()  # seen: 1.2e-6
    check_gradients([q, k, v], keywords)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
@pytest.mark.parametrize("keywords", [{"mask": "causal"}, {"softcap": 2.0, "window": (60, 3)}], ids=str)
def test_half_precision_gradients(dtype: mx.Dtype, keywords: dict[str, Any]) -> None:
    q, k, v = inputs((2, 4, 2, 130, 150, 32, 16), dtype)
    check_gradients([q, k, v], keywords)
    (cotangent, *_) = inputs((2, 4, 4, 130, 1, 16, 1), dtype, seed=1)
    gradients = with_gradients(cotangent, q, k, v, scale=0.2, **keywords)[1:]
    assert {gradient.dtype for gradient in gradients} == {dtype}
    compiled = mx.compile(lambda *arrays: with_gradients(*arrays, scale=0.2, **keywords)[1:])
    assert all(mx.array_equal(a, b).item() for a, b in zip(compiled(cotangent, q, k, v), gradients, strict=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("queries", [1, 3, 12])
@pytest.mark.parametrize("window", [None, (40, 0), (900, 0)], ids=str)
def test_few_queries_of_many_keys(dtype: mx.Dtype, queries: int, window: Any) -> None:
    """Keys are split among tasks: some see none, some end within a tile."""
    q, k, v = inputs((2, 4, 2, queries, 1700, 24, 20), dtype)
    keywords = {"lengths": np.array([1700, 901]), "starts": np.array([0, 65]), "window": window}
    b = bounds([q, k, v], **keywords)
    assert used(float64(attention(q, k, v, scale=0.3, **on_device(keywords))), b.a.out, b.out()) <= 1.0


@pytest.mark.parametrize("queries", [200, 60, 5], ids=lambda n: f"{n}_queries")
@pytest.mark.parametrize("mask", [None, "causal"])
def test_row_does_not_depend_on_its_batch(queries: int, mask: str | None) -> None:
    """Bit for bit, gradients included: a row among longer ones, padded on both sides, is the row alone."""
    q, k, v = inputs((3, 4, 2, queries, 1000, 32, 16))
    (cotangent, *_) = inputs((3, 4, 4, queries, 1, 16, 1), seed=1)
    bounds = [(0, 1000), (31, 170), (700, 999)]
    starts, lengths = (mx.array(list(column)) for column in zip(*bounds, strict=True))
    keywords: dict[str, Any] = {"scale": 0.2, "mask": mask}
    together = with_gradients(cotangent, q, k, v, **keywords, starts=starts, lengths=lengths)
    for row, (start, length) in enumerate(bounds):
        dropped = 1000 - length if mask == "causal" else 0  # the last queries stand where the last keys do
        kept = max(queries - dropped, 0)
        one = [x[row : row + 1] for x in (q, k, v)]
        alone = with_gradients(
            cotangent[row : row + 1, :, :kept],
            one[0][:, :, :kept],
            *(x[:, :, start:length] for x in one[1:]),
            **keywords,
        )
        out, dq, dk, dv = (x[row : row + 1] for x in together)
        pairs = [(out[:, :, :kept], alone[0]), (dq[:, :, :kept], alone[1])]
        if dropped == 0:
            pairs += [(dk[:, :, start:length], alone[2]), (dv[:, :, start:length], alone[3])]
        assert all(mx.array_equal(a, b).item() for a, b in pairs), row


@pytest.mark.parametrize("queries", [120, 1])
@pytest.mark.parametrize("P", [1, 96, 131])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
def test_prefix_is_as_if_copied(queries: int, P: int, dtype: mx.Dtype) -> None:
    q, k, v = inputs((2, 4, 2, queries, 120, 24, 16), dtype)
    prefix_k, prefix_v = inputs((1, 2, 2, P, P, 24, 16), dtype, seed=4)[1:]
    lengths = mx.array([120, 77])
    (cotangent, *_) = inputs((2, 4, 4, queries, 1, 16, 1), dtype, seed=1)
    shared = with_gradients(
        cotangent, q, k, v, scale=0.2, mask="causal", lengths=lengths, prefix=(prefix_k[0], prefix_v[0])
    )
    copied_k, copied_v = (
        mx.concatenate([mx.broadcast_to(p, (2, *p.shape[1:])), x], axis=2) for p, x in ((prefix_k, k), (prefix_v, v))
    )
    copied = with_gradients(cotangent, q, copied_k, copied_v, scale=0.2, mask="causal", lengths=lengths + P)
    copied[2:] = [x[:, :, P:] for x in copied[2:]]
    assert all(mx.array_equal(a, b).item() for a, b in zip(shared, copied, strict=True))


DIGEST = """
import hashlib, mlx.core as mx, numpy as np, mlx_tessl as mt
rng = np.random.default_rng(0)
q, k, v, ct = (mx.array(rng.standard_normal((2, 2, n, 40)).astype(np.float32)) for n in (390, 800, 800, 390))
f = lambda q, k, v: mt.attention(q, k, v, scale=0.2, mask="causal", window=(500, None))
arrays = [f(q[:, :, :2], k, v), *mx.vjp(f, [q, k, v], [ct])[0], *mx.vjp(f, [q, k, v], [ct])[1]]
print(hashlib.sha256(b"".join(np.array(x).tobytes() for x in arrays)).hexdigest())
"""


def test_threads_do_not_show() -> None:
    def digest(threads: int) -> str:
        environment = {**os.environ, "MLX_TESSL_NUM_THREADS": str(threads)}
        command = [sys.executable, "-c", DIGEST]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    assert digest(1) == digest(1) == digest(7)


PEAK = """
import mlx.core as mx, mlx_tessl as mt
T, backward = {T}, {backward}
q, k, v = (mx.random.normal((1, 1, T, 256)) for _ in range(3))
f = lambda q, k, v: mt.attention(q, k, v, scale=0.0625, mask="causal")
mx.eval(f(q[:, :, :64], k[:, :, :64], v[:, :, :64]))
peak = lambda: int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1])
before = peak()
mx.eval(mx.vjp(f, [q, k, v], [q])[1] if backward else f(q, k, v))
print(peak() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("backward", [False, True])
def test_memory_grows_as_the_text(backward: bool) -> None:
    """The scores of 16384 queries and keys would be 1 GiB, 64 times those of 2048."""

    def grown(T: int) -> int:
        """KiB."""
        script = PEAK.format(T=T, backward=backward)
        return int(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout)

    assert grown(16384) <= 8 * grown(2048) + 8 * 1024


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="has one instruction set")
def test_baseline_instruction_set() -> None:
    environment = {**os.environ, "MLX_TESSL_CPU_ISA": "baseline"}
    tests = [f"{__file__}::{name}" for name in ("test_several_tiles", "test_few_queries_of_many_keys")]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


def changed_queries(window: Any, mask: str | None, moved: int, T: int) -> list[int]:
    """Which queries another value at one key changes, in one head of ``T`` queries and keys."""
    q, k, v = inputs((1, 1, 1, T, T, 8, 8))
    other = mx.array(v)
    other[:, :, moved] += 1.0
    results = [attention(q, k, x, scale=0.1, mask=mask, window=window) for x in (v, other)]
    return np.flatnonzero(np.any(np.array(results[0] != results[1])[0, 0], axis=-1)).tolist()


@pytest.mark.parametrize("moved", [0, 95, 96, 150, 299])
def test_edges_of_a_window(moved: int) -> None:
    """Distances are inclusive: one token further on, nothing changes."""
    T = 300
    reach = {100: (100, 100), (100, 0): (100, 0), (0, 7): (0, 7), (None, 3): (T, 3), (96, None): (96, T)}
    for window, (left, right) in reach.items():
        expected = [i for i in range(T) if -right <= i - moved <= left]
        assert changed_queries(window, None, moved, T) == expected, window
    assert changed_queries(None, "causal", moved, T) == list(range(moved, T))
    assert changed_queries(5, "causal", moved, T) == list(range(moved, min(moved + 6, T)))


def hiding(kind: str, hidden: int, T: int) -> tuple[dict[str, Any], np.ndarray]:
    """Keywords that hide key ``hidden`` from some queries, and which queries these are."""
    query = np.arange(T)
    mask = np.ones((T, T), bool)
    mask[::3, hidden] = False
    return {
        "causal": ({"mask": "causal"}, query < hidden),
        "window": ({"window": 2}, abs(query - hidden) > 2),
        "boolean": ({"mask": mx.array(mask)}, query % 3 == 0),
        "additive": ({"mask": mx.where(mx.array(mask), 0.5, -mx.inf)}, query % 3 == 0),
        "lengths": ({"lengths": mx.array([hidden])}, query >= 0),
        "starts": ({"starts": mx.array([hidden + 1])}, query >= 0),
    }[kind]


@pytest.mark.parametrize("kind", ["causal", "window", "boolean", "additive", "lengths", "starts"])
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("queries", [130, 2])
def test_nothing_leaks_from_what_is_hidden(kind: str, poison: float, queries: int) -> None:
    T, hidden = 130, 70
    q, k, v = inputs((1, 2, 2, T, T, 16, 16))
    keywords, blind = hiding(kind, hidden, T)
    rows = slice(T - queries, T)
    if isinstance(keywords.get("mask"), mx.array):
        keywords["mask"] = keywords["mask"][rows]
    (cotangent, *_) = inputs((1, 2, 2, queries, 1, 16, 1), seed=1)
    clean = with_gradients(cotangent, q[:, :, rows], k, v, scale=0.25, **keywords)
    k[:, :, hidden] = poison
    v[:, :, hidden] = poison
    poisoned = with_gradients(cotangent, q[:, :, rows], k, v, scale=0.25, **keywords)
    for a, b in zip(clean[:2], poisoned[:2], strict=True):
        kept = np.flatnonzero(blind[rows])
        assert np.array_equal(np.array(a)[:, :, kept], np.array(b)[:, :, kept])
    if blind.all():
        assert all(mx.array_equal(a, b).item() for a, b in zip(clean, poisoned, strict=True))


@pytest.mark.parametrize("kind", ["boolean", "additive", "lengths", "window"])
@pytest.mark.parametrize("op", [attention, reference.attention], ids=["op", "twin"])
def test_query_that_sees_nothing(kind: str, op: Callable[..., mx.array]) -> None:
    """Zeros, and zero gradients, even where it is NaN itself."""
    T = 20
    mask = np.ones((T, T), bool)
    mask[4] = False
    blind, keywords = {
        "boolean": ([4], {"mask": mx.array(mask)}),
        "additive": ([4], {"mask": mx.where(mx.array(mask), 0.0, -mx.inf)}),
        "lengths": (list(range(T)), {"lengths": mx.array([0])}),
        "window": ([0, 1], {"window": (0, 0), "starts": mx.array([2])}),
    }[kind]
    q, k, v = inputs((1, 2, 2, T, T, 16, 16))
    sinks = mx.array([0.5, -1.0])
    for poison in (False, True):
        if poison and op is attention:
            q[:, :, blind] = float("nan")
        primals = [q, k, v, sinks]
        (out,), gradients = mx.vjp(
            lambda q, k, v, sinks: op(q, k, v, scale=0.25, sinks=sinks, **keywords), primals, [mx.ones(v.shape)]
        )
        assert not out[:, :, blind].any().item()
        assert not gradients[0][:, :, blind].any().item()
        assert all(mx.isfinite(g).all().item() for g in gradients)


def test_the_lowest_float_hides_nothing() -> None:
    """A mask of the lowest float alone weighs keys alike: it took the scores' place."""
    q, k, v = inputs((1, 2, 2, 5, 130, 8, 8))
    mask = mx.full((130,), mx.finfo(mx.float32).min)
    assert mx.allclose(attention(q, k, v, scale=0.3, mask=mask), v.mean(2, keepdims=True), atol=1e-5).item()
    mask[:65] = 0.0
    halved = attention(q, k, v, scale=0.3, lengths=mx.array([65]))
    assert mx.allclose(attention(q, k, v, scale=0.3, mask=mask), halved, atol=1e-6).item()


@pytest.mark.parametrize("lowest", [-1e9, float(mx.finfo(mx.float32).min)])
def test_gradients_beneath_a_mask_that_hides_almost(lowest: float) -> None:
    """Where a mask drowns all scores of a query alike, weights are 1 / n, in the gradients too."""
    arrays = inputs((1, 2, 2, 5, 130, 8, 6))
    q, k, v = (float64(x) for x in arrays)
    (dout, *_) = inputs((1, 2, 2, 5, 1, 6, 1), seed=1)
    mask = mx.full((5, 130), lowest)
    ours = with_gradients(dout, *arrays, scale=0.3, mask=mask)
    weights = np.full((1, 2, 5, 130), 1 / 130)
    by_weights = float64(dout) @ v.swapaxes(-1, -2)
    by_scores = 0.3 * weights * (by_weights - by_weights.mean(-1, keepdims=True))
    expected = [weights @ v, by_scores @ k, by_scores.swapaxes(-1, -2) @ q, weights.swapaxes(-1, -2) @ float64(dout)]
    for x, y in zip(ours, expected, strict=True):
        assert np.abs(float64(x) - y).max() <= 1e-5 * np.abs(y).max()  # seen: 5e-7


def test_derivatives_are_ours() -> None:
    """Gradients and maps run primitives of ours, without all scores at once."""
    arrays = inputs((2, 2, 2, 5, 8, 16, 16))
    with mt.trace() as entries:
        mx.eval(mx.grad(lambda q, k, v: attention(q, k, v, scale=1.0, stream=mx.cpu).sum(), (0, 1, 2))(*arrays))
    assert [entry.op for entry in entries] == ["mlx_tessl.attention", "mlx_tessl.attention_grad"]
    stacked = [mx.stack([x, x]) for x in arrays]
    with mt.trace() as entries:
        mx.eval(mx.vmap(lambda q, k, v: attention(q, k, v, scale=1.0, stream=mx.cpu))(*stacked))
    assert [entry.op for entry in entries] == ["mlx_tessl.attention"]


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
        emulated = attention(*arrays, scale=0.25, precision="exact", **keywords, stream=mx.cpu)
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
