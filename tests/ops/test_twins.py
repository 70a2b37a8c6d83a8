"""What the twins must not trip over in stock MLX: the vmap of its bitwise operators is wrong (mlx 0.32.4)."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

import mlx_tessl as mt


def test_attention_maps_over_lengths() -> None:
    q, k, v = (mx.random.normal((3, 2, 5, 8), key=mx.random.key(i)) for i in range(3))
    lengths = mx.array([[2, 4, 5], [1, 5, 3]])
    twin = mx.vmap(lambda n: mt.reference.attention(q, k, v, scale=0.3, lengths=n))(lengths)
    one_by_one = mx.stack([mt.reference.attention(q, k, v, scale=0.3, lengths=n) for n in lengths])
    np.testing.assert_allclose(np.array(twin), np.array(one_by_one), rtol=1e-5, atol=1e-6)


def test_segment_mean_maps_over_lengths() -> None:
    x = mx.random.normal((9, 4), key=mx.random.key(0))
    starts, lengths = mx.array([0, 3]), mx.array([[2, 4], [3, 1]])
    twin = mx.vmap(lambda n: mt.reference.segment_mean(x, starts, n))(lengths)
    one_by_one = mx.stack([mt.reference.segment_mean(x, starts, n) for n in lengths])
    np.testing.assert_allclose(np.array(twin), np.array(one_by_one), rtol=1e-5, atol=1e-6)
