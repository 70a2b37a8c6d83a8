from __future__ import annotations

import mlx.core as mx

from .streams import Stream, on


def kv_store(cache: mx.array, new: mx.array, position: int | mx.array, *, stream: Stream = None) -> mx.array:
    """Twin of :func:`mlx_tessl.kv_store`: ``new`` put into rows ``(position + t) mod S``."""
    with on(stream):
        steps = mx.arange(new.shape[-2])[:, None]
        positions = position if isinstance(position, mx.array) else mx.array(position)
        if positions.dtype.size < 4:
            positions = positions.astype(mx.int32)
        end = max(cache.shape[-2], 1)
        start = (positions % mx.array(end, positions.dtype)).astype(mx.int32).reshape(-1, *[1] * (cache.ndim - 1))
        rows = mx.broadcast_to((start + steps) % end, new.shape)
        return mx.put_along_axis(cache, rows, new.astype(cache.dtype), axis=-2)
