from __future__ import annotations

import mlx.core as mx

from .integers import as_int32
from .streams import Stream, on


def causal_conv1d(
    x: mx.array,
    weight: mx.array,
    state: mx.array | None = None,
    *,
    activation: str | None = "silu",
    starts: mx.array | None = None,
    lengths: mx.array | None = None,
    stream: Stream = None,
) -> tuple[mx.array, mx.array]:
    """Twin of :func:`mlx_tessl.causal_conv1d`: a weighted sum of K shifted copies of the tokens."""
    with on(stream):
        (B, T, C), K = x.shape, weight.shape[1]
        dtype = mx.result_type(x, weight) if state is None else mx.result_type(x, weight, state)
        state = mx.zeros((K - 1, C), dtype) if state is None else state.astype(dtype)
        end = mx.full((B,), T) if lengths is None else mx.clip(as_int32(lengths), 0, T)
        start = mx.zeros((B,), mx.int32) if starts is None else mx.minimum(mx.clip(as_int32(starts), 0, T), end)
        hidden = starts is not None or lengths is not None
        t = mx.arange(T)[None]
        inside = mx.logical_and(t >= start[:, None], t < end[:, None])[..., None]
        x = x.astype(dtype)
        if hidden:  # before anything is computed of it: a gradient of zero through a NaN would be NaN
            x = mx.where(inside, x, mx.array(0.0, dtype))
        rows = mx.concatenate([mx.broadcast_to(state, (B, K - 1, C)), x], axis=1)

        def taken(t: mx.array) -> mx.array:
            """Tokens by number; what precedes a row's first token is its state."""
            source = mx.where(t >= start[:, None], K - 1 + t, mx.maximum(K - 1 + t - start[:, None], 0))
            return mx.take_along_axis(rows, source[..., None], axis=1)

        y = mx.zeros((B, T, C))
        for j in range(K):
            tap = rows[:, j : j + T] if starts is None else taken(t - (K - 1 - j))
            y = y + weight[:, j].astype(mx.float32) * tap.astype(mx.float32)
        if activation == "silu":
            y = y * mx.sigmoid(y)
        if hidden:
            y = mx.where(inside, y, 0.0)
        last = taken(end[:, None] - (K - 1) + mx.arange(K - 1)[None]) if hidden else rows[:, T:]
        return y.astype(dtype), last
