from __future__ import annotations

import mlx.core as mx

from .activations import activate
from .streams import Stream, on


def linear(
    x: mx.array,
    weight: mx.array,
    bias: mx.array | None = None,
    *,
    activation: str | None = None,
    residual: mx.array | None = None,
    precision: str | None = None,
    batch_invariant: bool = False,
    stream: Stream = None,
) -> mx.array:
    """Twin of :func:`mlx_tessl.linear`: ``activation(x @ weight.T + bias) + residual`` in float32, rounded once."""
    with on(stream):
        dtype = mx.result_type(*(y for y in (x, weight, bias, residual) if y is not None))
        z = mx.matmul(x.astype(mx.float32), weight.astype(mx.float32).T)
        if bias is not None:
            z = z + bias.astype(mx.float32)
        y = activate(z, activation)
        if residual is not None:
            y = y + residual.astype(mx.float32)
        return y.astype(dtype)
