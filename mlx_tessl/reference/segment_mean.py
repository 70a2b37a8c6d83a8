from __future__ import annotations

import mlx.core as mx

from .integers import as_int64
from .streams import Stream, on


def segment_mean(x: mx.array, starts: mx.array, lengths: mx.array, *, stream: Stream = None) -> mx.array:
    """Twin of :func:`mlx_tessl.segment_mean`, as a product with a matrix of ``1 / length``.

    A NaN in a segment reaches the others, where the op keeps it apart; one outside all segments reaches none.
    """
    with on(stream):
        rows = mx.arange(x.shape[0])
        starts, lengths = as_int64(starts), as_int64(lengths)
        inside = mx.logical_and(rows >= starts[:, None], rows < (starts + lengths)[:, None])
        count = mx.maximum(mx.sum(inside, axis=1, keepdims=True), 1)
        visible = mx.where(mx.any(inside, axis=0)[:, None], x.astype(mx.float32), 0.0)
        return mx.matmul(inside.astype(mx.float32) / count, visible).astype(x.dtype)
