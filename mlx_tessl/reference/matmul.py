from __future__ import annotations

import mlx.core as mx

from .activations import activate
from .streams import Stream, on


def matmul(
    a: mx.array,
    b: mx.array,
    c: mx.array | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    bias: mx.array | None = None,
    activation: str | None = None,
    precision: str | None = None,
    batch_invariant: bool = False,
    stream: Stream = None,
) -> mx.array:
    """Twin of :func:`mlx_tessl.matmul`: ``activation(alpha a@b + beta c + bias)`` in float32, rounded once."""
    with on(stream):
        dtype = mx.result_type(*(x for x in (a, b, c, bias) if x is not None))
        z = alpha * mx.matmul(a.astype(mx.float32), b.astype(mx.float32))
        if c is not None and beta != 0:
            z = z + beta * c.astype(mx.float32)
        if bias is not None:
            z = z + bias.astype(mx.float32)
        return activate(z, activation).astype(dtype)
