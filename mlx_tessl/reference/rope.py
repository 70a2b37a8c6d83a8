from __future__ import annotations

import mlx.core as mx
import numpy as np

from .integers import as_int32
from .streams import Stream, on


def rope_inv_freq(rotary_dim: int, theta: float) -> mx.array:
    """``theta^(-2 i / rotary_dim)`` for ``i < rotary_dim / 2``, in float32 and by the steps that transformers takes.

    ``1 / theta ** (arange(0, rotary_dim, 2) / rotary_dim)`` with each step rounded to float32; the power is the nearest
    float32, from which torch's differs by one unit in the last place at most. Computed on the host: it is a constant.

    Args:
        rotary_dim: Even and positive.
        theta: Base, finite and positive.

    Returns:
        ``[rotary_dim / 2]`` float32.

    Raises:
        ValueError: A ``rotary_dim`` or ``theta`` that is not so.
    """
    if rotary_dim < 2 or rotary_dim % 2:
        raise ValueError(f"[mlx_tessl.rope_inv_freq] rotary_dim is {rotary_dim}; it must be even and positive")
    if not (0 < theta < float("inf")):
        raise ValueError(f"[mlx_tessl.rope_inv_freq] theta is {theta}; it must be finite and positive")
    exponents = np.arange(0, rotary_dim, 2, dtype=np.float32) / np.float32(rotary_dim)
    powers = np.power(np.float64(np.float32(theta)), exponents.astype(np.float64)).astype(np.float32)
    return mx.array(np.float32(1) / powers)


def rope(
    x: mx.array,
    positions: mx.array,
    inv_freq: mx.array,
    *,
    rotary_dim: int | None = None,
    interleaved: bool = False,
    stream: Stream = None,
) -> mx.array:
    """Twin of :func:`mlx_tessl.rope`: pairs turned by ``float32(position) inv_freq``, in float32, rounded once."""
    with on(stream):
        rotary_dim = x.shape[-1] if rotary_dim is None else rotary_dim
        return _rotate(x.astype(mx.float32), positions, inv_freq, rotary_dim, interleaved).astype(x.dtype)


def qk_norm_rope(
    q: mx.array,
    k: mx.array,
    q_weight: mx.array,
    k_weight: mx.array,
    positions: mx.array,
    inv_freq: mx.array,
    eps: float,
    *,
    weight_offset: float = 0.0,
    rotary_dim: int | None = None,
    stream: Stream = None,
) -> tuple[mx.array, mx.array]:
    """Twin of :func:`mlx_tessl.qk_norm_rope`: ``rope(rms_norm(q))`` and ``rope(rms_norm(k))`` in float32."""
    with on(stream):
        dtype = mx.result_type(q, k, q_weight, k_weight)
        rotary_dim = q.shape[-1] if rotary_dim is None else rotary_dim

        def turned(x: mx.array, weight: mx.array) -> mx.array:
            x = x.astype(mx.float32)
            x = x * mx.rsqrt(mx.mean(x * x, axis=-1, keepdims=True) + eps)
            x = x * (weight.astype(mx.float32) + weight_offset)
            return _rotate(x, positions, inv_freq, rotary_dim, False).astype(dtype)

        return turned(q, q_weight), turned(k, k_weight)


def _rotate(x: mx.array, positions: mx.array, inv_freq: mx.array, rotary_dim: int, interleaved: bool) -> mx.array:
    if positions.ndim == 2 and x.ndim > 3:
        positions = positions.reshape(positions.shape[0], *[1] * (x.ndim - 3), positions.shape[1])
    angles = as_int32(positions)[..., None].astype(mx.float32) * inv_freq.astype(mx.float32)
    cosine, sine = mx.cos(angles), mx.sin(angles)
    rotary, rest = x[..., :rotary_dim], x[..., rotary_dim:]
    if interleaved:
        a, b = rotary[..., ::2], rotary[..., 1::2]
        turned = mx.stack([a * cosine - b * sine, b * cosine + a * sine], axis=-1).flatten(-2)
    else:
        a, b = rotary[..., : rotary_dim // 2], rotary[..., rotary_dim // 2 :]
        turned = mx.concatenate([a * cosine - b * sine, b * cosine + a * sine], axis=-1)
    return mx.concatenate([turned, rest], axis=-1)
