from __future__ import annotations

import mlx.core as mx

from .integers import as_int32
from .streams import Stream, on


def sparse_max_pool(
    hidden: mx.array,
    weight: mx.array,
    bias: mx.array | None = None,
    lengths: mx.array | None = None,
    *,
    activation: str = "log1p_relu",
    pooling: str = "max",
    precision: str | None = None,
    stream: Stream = None,
) -> mx.array:
    """Twin of :func:`mlx_tessl.sparse_max_pool`, with all logits at once."""
    with on(stream):
        operands = (hidden, weight) if bias is None else (hidden, weight, bias)
        dtype = mx.result_type(*operands)
        rows, tokens, _ = hidden.shape
        if tokens == 0:
            return mx.zeros((rows, weight.shape[0]), dtype)
        hidden = hidden.astype(mx.float32)
        counts = None
        if (
            lengths is not None
        ):  # hidden before anything is computed of it: a gradient of zero through a NaN would be NaN
            counts = (mx.arange(tokens) < as_int32(lengths)[:, None])[..., None]
            hidden = mx.where(counts, hidden, 0.0)
        logits = mx.matmul(hidden, weight.astype(mx.float32).T)
        if bias is not None:
            logits = logits + bias.astype(mx.float32)
        weights = mx.log1p(mx.maximum(logits, 0.0))
        if activation == "log1p_log1p_relu":
            weights = mx.log1p(weights)
        if counts is not None:
            weights = mx.where(counts, weights, 0.0)
        pooled = weights.max(axis=1) if pooling == "max" else weights.sum(axis=1)
        return pooled.astype(dtype)
