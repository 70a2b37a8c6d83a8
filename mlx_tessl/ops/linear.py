from __future__ import annotations

import mlx.core as mx

from .. import _ext, reference
from .._dispatch import takes_twin
from ..reference.streams import Stream
from .matmul import Activation, Precision


def linear(
    x: mx.array,
    weight: mx.array,
    bias: mx.array | None = None,
    *,
    activation: Activation | None = None,
    residual: mx.array | None = None,
    precision: Precision | None = None,
    batch_invariant: bool = False,
    stream: Stream = None,
) -> mx.array:
    """``activation(x @ weight.T + bias) + residual`` in one launch, accumulated in float32 and rounded once.

    Transforms, strides and ``precision`` are as in :func:`matmul`.

    Args:
        x: ``[..., K]``.
        weight: ``[N, K]``, as checkpoints store it; it is read transposed, not copied.
        bias: ``[N]``.
        activation: ``"relu"``, ``"silu"``, ``"gelu"`` (exact, by erf) or ``"gelu_tanh"``.
        residual: Anything that broadcasts to ``[..., N]``, added after the activation.
        precision: ``"exact"``, ``"relaxed"`` or ``None``.
        batch_invariant: A row's bits do not depend on the other rows.
        stream: Stream or device.

    Returns:
        ``[..., N]`` in the dtype to which the operands promote: float32, float16 or bfloat16.

    Raises:
        ValueError: As :func:`matmul`.
    """
    op = reference.linear if takes_twin(stream) else _ext.linear
    return op(
        x,
        weight,
        bias,
        activation=activation,
        residual=residual,
        precision=precision,
        batch_invariant=batch_invariant,
        stream=stream,
    )
