"""What the conformance table does not say about the ops over rows."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

import mlx_tessl as mt


def normal(*shape: int, seed: int = 0, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.array(np.random.default_rng(seed).standard_normal(shape).astype(np.float32)).astype(dtype)


# Norms


def test_a_large_mean_cancels_nothing() -> None:
    """The spread of rows far from zero is that of the numbers given: 1e4 in float32 steps of 1e-3."""
    x = 1e4 + normal(4, 1000)
    exact = np.array(x).astype(np.float64)
    exact = (exact - exact.mean(-1, keepdims=True)) / exact.std(-1, keepdims=True)
    assert np.max(np.abs(np.array(mt.layer_norm(x, None, None, 0.0)) - exact)) < 2e-3


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_the_norm_is_of_the_sum_before_its_rounding(dtype: mx.Dtype) -> None:
    x, residual, weight = (normal(3, 64, seed=i, dtype=dtype) for i in range(3))
    y, s = mt.rms_norm(x, weight[0], 1e-6, residual=residual)
    exact = x.astype(mx.float32) + residual.astype(mx.float32)
    assert mx.array_equal(s, exact.astype(dtype))
    alone = mt.rms_norm(exact, weight[0].astype(mx.float32), 1e-6)
    assert mx.array_equal(y, alone.astype(dtype))


def test_nan_stays_in_its_row() -> None:
    x = normal(5, 40)
    x[2, 7] = float("nan")
    y = mt.layer_norm(x, None, None, 1e-5)
    assert mx.array_equal(mx.isnan(y), mx.broadcast_to(mx.arange(5)[:, None] == 2, (5, 40)))


def test_rows_keep_their_bits_beside_others() -> None:
    x, residual, weight = normal(300, 333), normal(300, 333, seed=1), normal(333, seed=2)
    together = mt.layer_norm(x, weight, None, 1e-5, residual=residual)[0]
    alone = mt.layer_norm(x[123:124], weight, None, 1e-5, residual=residual[123:124])[0]
    assert mx.array_equal(together[123:124], alone)


def test_mixed_dtypes_promote_as_in_mlx() -> None:
    assert mt.rms_norm(normal(2, 8, dtype=mx.bfloat16), mx.ones(8), 1e-6).dtype == mx.float32
    assert mt.swiglu(normal(2, 8, dtype=mx.bfloat16), normal(2, 8, dtype=mx.bfloat16)).dtype == mx.bfloat16


# Gates


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_gates_of_great_size(dtype: mx.Dtype) -> None:
    gate = mx.array([-6e4, -200.0, -90.0, 0.0, 90.0, 6e4]).astype(dtype)
    ones = mx.ones(6, dtype)
    relu = mx.maximum(gate, 0)
    for result, expected in (
        (mt.sigmoid_gate(ones, gate), mx.array([0, 0, 0, 0.5, 1, 1]).astype(dtype)),
        (mt.swiglu(gate, ones), relu),
        (mt.geglu(gate, ones), relu),
        (mt.geglu(gate, ones, approximate="none"), relu),
    ):
        assert mx.allclose(result, expected, rtol=0, atol=1e-37)  # exp(-90) is subnormal


def test_halves_of_one_product_are_read_in_place() -> None:
    both = normal(7, 2 * 30)
    gate, up = mx.split(both, 2, axis=-1)
    assert mx.allclose(mt.swiglu(gate, up), mt.reference.swiglu(gate, up), atol=1e-6)


# Rotary embedding


def test_angles_at_long_positions() -> None:
    """Position 2^20 and more against float64 cosines of the float32 angles: 2 ulp of 1 allowed, 1.1 seen."""
    positions = np.array([0, 1, 4095, 20000, 131071, 1 << 20, (1 << 24) - 1], np.int32)
    inv_freq = np.array(mt.rope_inv_freq(64, 1e4))
    x = np.zeros((len(positions), 64), np.float32)
    x[:, :32] = 1.0
    y = np.array(mt.rope(mx.array(x), mx.array(positions), mx.array(inv_freq)))
    angles = (positions.astype(np.float32)[:, None] * inv_freq).astype(np.float64)
    expected = np.concatenate([np.cos(angles), np.sin(angles)], axis=-1)
    assert np.max(np.abs(y - expected)) <= 2 * 2.0**-24 * 1.01


def test_inv_freq_table() -> None:
    """By torch 2's own steps; values of float32 at theta 1e4 and 1e7, to the bit."""
    assert np.array(mt.rope_inv_freq(8, 1e4)).tolist() == [1.0, np.float32(0.1), np.float32(0.01), np.float32(0.001)]
    for dim, theta in ((64, 1e7), (128, 1e4), (256, 1e6)):
        exact = theta ** (-np.arange(0, dim, 2) / dim)
        table = np.array(mt.rope_inv_freq(dim, theta))
        assert table.dtype == np.float32
        # The exponent's rounding is worth up to ln(theta) / 2 roundings of the result.
        assert np.max(np.abs(table / exact - 1)) <= (np.log(theta) / 2 + 2) * 2.0**-24


@pytest.mark.parametrize(("dim", "theta"), [(0, 1e4), (7, 1e4), (8, 0.0), (8, float("inf")), (8, float("nan"))])
def test_inv_freq_refusals(dim: int, theta: float) -> None:
    with pytest.raises(ValueError, match=r"^\[mlx_tessl\.rope_inv_freq\]"):
        mt.rope_inv_freq(dim, theta)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_is_that_of_mlx(interleaved: bool) -> None:
    x = normal(2, 3, 9, 32)
    ours = mt.rope(x, mx.arange(5, 14), mt.rope_inv_freq(16, 1e4), rotary_dim=16, interleaved=interleaved)
    theirs = mx.fast.rope(x, 16, traditional=interleaved, base=1e4, scale=1.0, offset=5)
    assert mx.allclose(ours, theirs, atol=2e-5)


def test_qk_norm_rope_is_its_parts() -> None:
    q, k, wq, wk = normal(2, 9, 4, 32), normal(2, 9, 1, 32, seed=1), normal(32, seed=2), normal(32, seed=3)
    q, k = q.swapaxes(1, 2), k.swapaxes(1, 2)
    inv_freq, positions = mt.rope_inv_freq(16, 1e7), mx.arange(9)
    ours = mt.qk_norm_rope(q, k, wq, wk, positions, inv_freq, 1e-6, weight_offset=1.0, rotary_dim=16)
    for result, x, w in zip(ours, (q, k), (wq, wk), strict=True):
        normed = mt.rms_norm(x, w, 1e-6, weight_offset=1.0)
        assert mx.allclose(result, mt.rope(normed, positions, inv_freq, rotary_dim=16), atol=1e-6)


# Reductions


def test_gradient_of_a_zero_row() -> None:
    gradient = mx.grad(lambda x: mt.l2_normalize(x, 1e-6).sum())(mx.zeros((2, 4)))
    assert mx.allclose(gradient, mx.full((2, 4), 1e6))


def test_softmax_axis_is_a_view_away() -> None:
    x = normal(4, 5, 6)
    assert mx.allclose(mt.softmax(x, 1), mx.softmax(x, axis=1), atol=1e-6)


def test_rows_past_what_16_bits_count() -> None:
    x = normal(2, 70001)
    x[:, 70000] = 9.0
    assert mt.argmax(x).tolist() == [70000, 70000]
    assert mt.row_max(x).tolist() == [9.0, 9.0]
    assert mx.allclose(mt.softmax(x).sum(-1), mx.ones(2), atol=1e-5)
    assert mx.allclose(mt.logsumexp(x), mx.logsumexp(x, axis=-1), atol=1e-5)


# Sampling


def test_same_key_same_choice() -> None:
    logits = normal(20, 500)
    a, b = mx.random.split(mx.random.key(3))
    assert mx.array_equal(mt.sample(logits, key=a), mt.sample(logits, key=a))
    assert not mx.array_equal(mt.sample(logits, key=a), mt.sample(logits, key=b))


def test_the_global_key_is_that_of_mlx() -> None:
    logits = normal(20, 500)
    mx.random.seed(11)
    first, second = mt.sample(logits), mt.sample(logits)
    mx.random.seed(11)
    assert mx.array_equal(first, mt.sample(logits))
    assert not mx.array_equal(first, second)


@pytest.mark.parametrize(
    ("keywords", "kept"), [({}, 6), ({"top_k": 3}, 3), ({"top_p": 0.8}, 3), ({"top_k": 4, "top_p": 0.9}, 3)]
)
def test_distribution(keywords: dict[str, float], kept: int) -> None:
    """Chi-square of 40000 draws against the renormalised probabilities; 30 is beyond 1 in 10^4 for 5 degrees."""
    probabilities = np.array([0.4, 0.25, 0.2, 0.08, 0.04, 0.03])
    order = np.array([3, 0, 5, 1, 4, 2])
    logits = np.empty(6, np.float32)
    logits[order] = 2 * np.log(probabilities)
    draws = 40000
    rows = mx.broadcast_to(mx.array(logits), (draws, 6))
    choices = np.array(mt.sample(rows, temperature=2.0, key=mx.random.key(5), **keywords))
    counts = np.bincount(choices, minlength=6)[order]
    expected = draws * probabilities[:kept] / probabilities[:kept].sum()
    assert counts[kept:].sum() == 0
    assert np.sum((counts[:kept] - expected) ** 2 / expected) < 30


def test_ties_at_a_threshold_all_stay() -> None:
    logits = mx.broadcast_to(mx.array([1.0, 0.0, 0.0, 0.0, -5.0]), (3000, 5))
    assert set(np.array(mt.sample(logits, top_k=2, key=mx.random.key(0))).tolist()) == {0, 1, 2, 3}


def test_an_index_is_constant_to_derivatives() -> None:
    x = normal(3, 7)
    for choose in (mt.argmax, lambda x: mt.sample(x, key=mx.random.key(0))):
        assert not mx.any(mx.grad(lambda x: choose(x).astype(mx.float32).sum())(x)).item()  # noqa: B023


# Segments


def test_nan_stays_in_its_segment() -> None:
    x = normal(30, 8)
    x[4] = float("nan")
    x[29] = float("nan")
    means = mt.segment_mean(x, mx.array([0, 10, 20]), mx.array([10, 10, 9]))
    assert mx.array_equal(mx.isnan(means[:, 0]), mx.array([True, False, False]))


# Key-value cache


def test_a_cache_that_nothing_else_holds_is_not_copied() -> None:
    """Memory stays below that of two caches while steps follow one another, and not where the old one is kept."""

    def peak(keep: bool) -> int:
        cache = mx.zeros((8, 1024, 256))
        mx.eval(cache)
        kept = []
        mx.reset_peak_memory()
        start = mx.get_active_memory()
        for step in range(4):
            if keep:
                kept.append(cache)
            cache = mt.kv_store(cache, mx.ones((8, 1, 256)), step)
            mx.eval(cache)
        return mx.get_peak_memory() - start

    one_cache = 8 * 1024 * 256 * 4
    assert peak(keep=False) < one_cache / 8
    assert peak(keep=True) >= 4 * one_cache


@pytest.mark.parametrize("dtype", [mx.uint8, mx.int64, mx.bool_, mx.bfloat16])
def test_caches_of_any_kind(dtype: mx.Dtype) -> None:
    cache = mx.zeros((2, 5, 6), dtype)
    y = mt.kv_store(cache, mx.ones((2, 2, 6)), mx.array([1, 4]))
    assert y.dtype == dtype
    assert np.array(y[..., 0].astype(mx.int32)).tolist() == [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]
    assert not mx.any(cache).item()
