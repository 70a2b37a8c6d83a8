from __future__ import annotations

from typing import Literal

import mlx.core as mx

from .. import _ext, reference
from .._dispatch import takes_twin
from ..reference.streams import Stream


def sigmoid_gate(x: mx.array, gate: mx.array, *, stream: Stream = None) -> mx.array:
    """``x sigmoid(gate)`` in one pass, in float32 with one rounding: the output gate of Qwen3.5's attention.

    Operands broadcast, and may have any strides: two parts of one matrix product are read where they lie. A NaN comes
    out as NaN. Works under ``mx.grad``, ``mx.jvp``, ``mx.vmap`` and ``mx.compile`` (also shapeless).

    Args:
        x: ``[..., N]``, 1 to 9 dimensions.
        gate: ``[..., N]``, 1 to 9 dimensions.
        stream: Stream or device.

    Returns:
        What both broadcast to, in the dtype to which they promote: float32, float16 or bfloat16.

    Raises:
        ValueError: Shapes that do not broadcast, ``N = 0``, a dtype other than those three.
    """
    op = reference.sigmoid_gate if takes_twin(stream) else _ext.sigmoid_gate
    return op(x, gate, stream=stream)


def swiglu(gate: mx.array, up: mx.array, *, stream: Stream = None) -> mx.array:
    """``silu(gate) up``, ``silu(z) = z sigmoid(z)``, in one pass; operands and errors as in :func:`sigmoid_gate`.

    Where ``gate`` is minus infinity the result is NaN, as in MLX.

    Args:
        gate: ``[..., N]``, 1 to 9 dimensions.
        up: ``[..., N]``, 1 to 9 dimensions.
        stream: Stream or device.

    Returns:
        What both broadcast to, in the dtype to which they promote.

    Source: Shazeer, arXiv 2002.05202.
    """
    op = reference.swiglu if takes_twin(stream) else _ext.swiglu
    return op(gate, up, stream=stream)


def geglu(
    gate: mx.array, up: mx.array, *, approximate: Literal["none", "tanh"] = "tanh", stream: Stream = None
) -> mx.array:
    """``gelu(gate) up`` in one pass; operands and errors as in :func:`sigmoid_gate`.

    Args:
        gate: ``[..., N]``, 1 to 9 dimensions.
        up: ``[..., N]``, 1 to 9 dimensions.
        approximate: ``"tanh"`` is ``z/2 (1 + tanh(sqrt(2/pi) (z + 0.044715 z^3)))``; ``"none"`` is exact, by erf.
        stream: Stream or device.

    Returns:
        What both broadcast to, in the dtype to which they promote.

    Raises:
        ValueError: As :func:`sigmoid_gate`; an unknown ``approximate``.

    Source: Shazeer, arXiv 2002.05202; Hendrycks and Gimpel, arXiv 1606.08415.
    """
    op = reference.geglu if takes_twin(stream) else _ext.geglu
    return op(gate, up, approximate=approximate, stream=stream)
