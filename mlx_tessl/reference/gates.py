from __future__ import annotations

from typing import Literal

import mlx.core as mx

from .activations import activate
from .streams import Stream, on


def sigmoid_gate(x: mx.array, gate: mx.array, *, stream: Stream = None) -> mx.array:
    """Twin of :func:`mlx_tessl.sigmoid_gate`: ``x sigmoid(gate)`` in float32, rounded once."""
    with on(stream):
        dtype = mx.result_type(x, gate)
        return (x.astype(mx.float32) * mx.sigmoid(gate.astype(mx.float32))).astype(dtype)


def swiglu(gate: mx.array, up: mx.array, *, stream: Stream = None) -> mx.array:
    """Twin of :func:`mlx_tessl.swiglu`: ``silu(gate) up`` in float32, rounded once."""
    with on(stream):
        return _gated("silu", gate, up)


def geglu(
    gate: mx.array, up: mx.array, *, approximate: Literal["none", "tanh"] = "tanh", stream: Stream = None
) -> mx.array:
    """Twin of :func:`mlx_tessl.geglu`: ``gelu(gate) up`` in float32, rounded once."""
    with on(stream):
        return _gated("gelu_tanh" if approximate == "tanh" else "gelu", gate, up)


def _gated(activation: str, gate: mx.array, up: mx.array) -> mx.array:
    dtype = mx.result_type(gate, up)
    return (activate(gate.astype(mx.float32), activation) * up.astype(mx.float32)).astype(dtype)
