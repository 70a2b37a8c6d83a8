from __future__ import annotations

import mlx.core as mx

from .streams import Stream, on

Normed = mx.array | tuple[mx.array, mx.array]


def rms_norm(
    x: mx.array,
    weight: mx.array | None,
    eps: float,
    *,
    residual: mx.array | None = None,
    weight_offset: float = 0.0,
    stream: Stream = None,
) -> Normed:
    """Twin of :func:`mlx_tessl.rms_norm`: ``s / sqrt(mean(s^2) + eps) (weight + offset)`` of ``x + residual``."""
    with on(stream):
        dtype = _dtype(x, residual, weight)
        s = _sum(x, residual)
        y = _scaled(s, eps)
        if weight is not None:
            y = y * (weight.astype(mx.float32) + weight_offset)
        return _with_sum(y, s, residual, dtype)


def layer_norm(
    x: mx.array,
    weight: mx.array | None,
    bias: mx.array | None,
    eps: float,
    *,
    residual: mx.array | None = None,
    stream: Stream = None,
) -> Normed:
    """Twin of :func:`mlx_tessl.layer_norm`: ``(s - mean) / sqrt(var + eps) weight + bias`` of ``x + residual``."""
    with on(stream):
        dtype = _dtype(x, residual, weight, bias)
        s = _sum(x, residual)
        y = _scaled(s - mx.mean(s, axis=-1, keepdims=True), eps)
        if weight is not None:
            y = y * weight.astype(mx.float32)
        if bias is not None:
            y = y + bias.astype(mx.float32)
        return _with_sum(y, s, residual, dtype)


def gated_rms_norm(x: mx.array, gate: mx.array, weight: mx.array, eps: float, *, stream: Stream = None) -> mx.array:
    """Twin of :func:`mlx_tessl.gated_rms_norm`: ``rms_norm(x, weight, eps) silu(gate)``."""
    with on(stream):
        dtype = _dtype(x, gate, weight)
        g = gate.astype(mx.float32)
        y = _scaled(_sum(x, None), eps) * weight.astype(mx.float32) * (g * mx.sigmoid(g))
        return y.astype(dtype)


def _dtype(*arrays: mx.array | None) -> mx.Dtype:
    return mx.result_type(*(x for x in arrays if x is not None))


def _sum(x: mx.array, residual: mx.array | None) -> mx.array:
    s = x.astype(mx.float32)
    return s if residual is None else s + residual.astype(mx.float32)


def _scaled(s: mx.array, eps: float) -> mx.array:
    return s * mx.rsqrt(mx.mean(s * s, axis=-1, keepdims=True) + eps)


def _with_sum(y: mx.array, s: mx.array, residual: mx.array | None, dtype: mx.Dtype) -> Normed:
    return y.astype(dtype) if residual is None else (y.astype(dtype), s.astype(dtype))
