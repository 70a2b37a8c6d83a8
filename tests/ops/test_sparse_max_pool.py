"""What the table of conformance does not ask of sparse_max_pool: bits, NaN, the logarithm's accuracy, and memory."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

import mlx_tessl as mt

poolings = pytest.mark.parametrize("pooling", ["max", "sum"])


def normal(*shape: int, seed: int = 0) -> mx.array:
    return mx.array(np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32))


@poolings
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_a_rows_bits_are_its_own(pooling: str, dtype: mx.Dtype) -> None:
    """Whatever else is in the batch, however it is padded, and whatever number of tokens is left over of a group."""
    hidden, weight, bias = normal(8, 13, 24).astype(dtype), normal(70, 24).astype(dtype), normal(70).astype(dtype)
    lengths = [13, 12, 7, 6, 5, 3, 2, 1]
    together = mt.sparse_max_pool(hidden, weight, bias, mx.array(lengths), pooling=pooling)
    for row, length in enumerate(lengths):
        alone = mt.sparse_max_pool(hidden[row : row + 1, :length], weight, bias, pooling=pooling)
        assert mx.array_equal(alone[0], together[row]).item()


@poolings
def test_nan(pooling: str) -> None:
    """A token's NaN makes its row NaN; what pads a row is not read; a row without tokens is zeros."""
    hidden = np.ones((3, 9, 8), np.float32)
    hidden[1, 3] = np.nan
    hidden[2, 5:] = np.nan
    weight = mx.ones((40, 8))
    found = mt.sparse_max_pool(mx.array(hidden), weight, None, mx.array([9, 9, 5]), pooling=pooling)
    assert mx.isnan(found).all(axis=1).tolist() == [False, True, False]
    assert mx.isnan(found).any(axis=1).tolist() == [False, True, False]
    bias = mx.full((40,), mx.nan)
    empty = mt.sparse_max_pool(mx.array(hidden), weight, bias, mx.array([0, 1, 0]), pooling=pooling)
    assert not mx.isnan(empty[::2]).any().item()
    assert mx.abs(empty[::2]).max().item() == 0


@poolings
@pytest.mark.parametrize("activation", ["log1p_relu", "log1p_log1p_relu"])
def test_logarithm(pooling: str, activation: str) -> None:
    """From the least to the greatest logit."""
    logits = np.concatenate([-np.logspace(-3, 3, 5), [0.0], np.logspace(-30, 38, 2001), [np.inf]]).astype(np.float32)
    found = mt.sparse_max_pool(
        mx.ones((1, 1, 1)),
        mx.array(logits[:, None]),
        activation=activation,  # type: ignore[arg-type]
        pooling=pooling,  # type: ignore[arg-type]
    )
    expected = np.log1p(np.maximum(logits.astype(np.float64), 0))
    expected = np.log1p(expected) if activation == "log1p_log1p_relu" else expected
    *ours, last = np.array(found)[0].astype(np.float64)
    assert last == np.inf
    assert np.all(np.abs(ours - expected[:-1]) <= 4 * 2.0**-24 * expected[:-1])  # seen: 2.0


def test_logits_are_not_held() -> None:
    """200 MB of them; the result is 0.5 MB."""
    hidden, weight = normal(4, 400, 16), normal(31_250, 16)
    mx.eval(hidden, weight)
    mx.eval(mt.sparse_max_pool(hidden[:1], weight))
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    mx.eval(mt.sparse_max_pool(hidden, weight))
    assert mx.get_peak_memory() - before <= 1e6  # seen: 0.5e6
