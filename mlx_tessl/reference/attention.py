from __future__ import annotations

import mlx.core as mx

from .streams import Stream, on


def attention(
    q: mx.array, k: mx.array, v: mx.array, *, scale: float, lengths: mx.array | None = None, stream: Stream = None
) -> mx.array:
    """Twin of :func:`mlx_tessl.ops.attention`: ``softmax(scale q k^T) v`` over the visible keys, rounded once."""
    with on(stream):
        dtype = mx.result_type(q, k, v)
        groups = q.shape[1] // k.shape[1]
        q, k, v = (x.astype(mx.float32) for x in (q, k, v))
        k, v = (mx.repeat(x, groups, axis=1) for x in (k, v))
        scores = scale * mx.matmul(q, k.swapaxes(-1, -2))
        if lengths is None:
            return mx.matmul(mx.softmax(scores, axis=-1), v).astype(dtype)
        visible = (mx.arange(k.shape[2]) < lengths[:, None])[:, None, None, :]
        scores = mx.where(visible, scores, mx.finfo(mx.float32).min)
        v = mx.where(visible.swapaxes(-1, -2), v, 0)
        some = (lengths > 0)[:, None, None, None]
        return mx.where(some, mx.matmul(mx.softmax(scores, axis=-1), v), 0).astype(dtype)
