from __future__ import annotations

import mlx.core as mx

from .streams import Stream, on


def score_rows(hidden: mx.array, rows: mx.array, weight: mx.array, ids: mx.array, *, stream: Stream = None) -> mx.array:
    """Twin of :func:`mlx_tessl.score_rows`: the logits of the chosen rows and ids alone, in float32."""
    with on(stream):
        chosen = _taken(hidden, rows).astype(mx.float32)
        heads = _taken(weight, ids).astype(mx.float32)
        logits = mx.matmul(chosen, heads.T)
        return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def _taken(x: mx.array, indices: mx.array) -> mx.array:
    """Rows of x; NaN for one that it has not."""
    inside = mx.logical_and(indices >= 0, indices < x.shape[0])
    return mx.where(inside[:, None], mx.take(x, mx.where(inside, indices, 0), axis=0), mx.nan)
