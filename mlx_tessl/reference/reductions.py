from __future__ import annotations

import mlx.core as mx

from .streams import Stream, on


def row_sum(x: mx.array, *, stream: Stream = None) -> mx.array:
    """Twin of :func:`mlx_tessl.row_sum`: the sum over the last dimension in float32, rounded once."""
    with on(stream):
        return mx.sum(x.astype(mx.float32), axis=-1).astype(x.dtype)


def row_max(x: mx.array, *, stream: Stream = None) -> mx.array:
    """Twin of :func:`mlx_tessl.row_max`: the greatest element of the last dimension."""
    with on(stream):
        return mx.max(x, axis=-1)


def logsumexp(x: mx.array, *, stream: Stream = None) -> mx.array:
    """Twin of :func:`mlx_tessl.logsumexp`: ``log(sum(exp(x)))`` over the last dimension in float32, rounded once."""
    with on(stream):
        y = x.astype(mx.float32)
        most = mx.max(y, axis=-1, keepdims=True)
        e = mx.where(y == most, 1.0, mx.exp(y - most))  # 1 also where both are infinite
        return (most.squeeze(-1) + mx.log(mx.sum(e, axis=-1))).astype(x.dtype)


def softmax(x: mx.array, axis: int = -1, *, stream: Stream = None) -> mx.array:
    """Twin of :func:`mlx_tessl.softmax`: in float32, rounded once; uniform where all is minus infinity."""
    with on(stream):
        y = x.astype(mx.float32)
        hidden = mx.max(y, axis=axis, keepdims=True) == -mx.inf
        return mx.softmax(mx.where(hidden, 0.0, y), axis=axis).astype(x.dtype)


def l2_normalize(x: mx.array, eps: float, *, stream: Stream = None) -> mx.array:
    """Twin of :func:`mlx_tessl.l2_normalize`: ``x / max(|x|, eps)`` over the last dimension, in float32."""
    with on(stream):
        y = x.astype(mx.float32)
        squares = mx.sum(y * y, axis=-1, keepdims=True)
        zero = squares == 0  # a norm without a derivative
        norm = mx.maximum(mx.sqrt(mx.where(zero, 1.0, squares)), eps)
        return (y / mx.where(zero, eps, norm)).astype(x.dtype)
