from __future__ import annotations

import math

import mlx.core as mx


def activate(z: mx.array, activation: str | None) -> mx.array:
    """``z``, its positive part, ``z sigmoid(z)``, or ``z Phi(z)`` exactly or by the usual tanh approximation."""
    match activation:
        case None:
            return z
        case "relu":
            return mx.maximum(z, 0.0)
        case "silu":
            return mx.multiply(z, mx.sigmoid(z))
        case "gelu":
            return 0.5 * z * (1 + mx.erf(z * math.sqrt(0.5)))
        case "gelu_tanh":
            u = math.sqrt(2 / math.pi) * (z + 0.044715 * z * z * z)
            # tanh is 1 in float32 from 9.02 on; its second derivative in MLX is NaN from 89 on.
            return 0.5 * z * (1 + mx.tanh(mx.clip(u, -15, 15)))
    raise ValueError(
        f"[mlx_tessl.activate] activation is {activation!r}; it must be None, 'relu', 'silu', 'gelu' or 'gelu_tanh'"
    )
