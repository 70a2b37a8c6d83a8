from __future__ import annotations

import mlx.core as mx

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
        before = mx.broadcast_to(state, (B, K - 1, C))
        rows = mx.concatenate([before, x.astype(dtype)], axis=1)
        end = mx.full((B,), T) if lengths is None else mx.clip(lengths, 0, T)
        start = mx.zeros((B,), mx.int32) if starts is None else mx.minimum(mx.clip(starts, 0, T), end)
        hidden = starts is not None or lengths is not None

        def taken(t: mx.array) -> mx.array:
            """Tokens by number; what precedes a row's first token is its state."""
            source = mx.where(t >= start[:, None], K - 1 + t, mx.maximum(K - 1 + t - start[:, None], 0))
            return mx.take_along_axis(rows, source[..., None], axis=1)

        t = mx.arange(T)[None]
        y = mx.zeros((B, T, C))
        for j in range(K):
            tap = rows[:, j : j + T] if starts is None else taken(t - (K - 1 - j))
            y = y + weight[:, j].astype(mx.float32) * tap.astype(mx.float32)
        if activation == "silu":
            y = y * mx.sigmoid(y)
        if hidden:
            inside = mx.logical_and(t >= start[:, None], t < end[:, None])
            y = mx.where(inside[..., None], y, 0.0)
        last = taken(end[:, None] - (K - 1) + mx.arange(K - 1)[None]) if hidden else rows[:, T:]
        return y.astype(dtype), last
