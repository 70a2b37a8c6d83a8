from __future__ import annotations

from typing import Literal

import mlx.core as mx

from .. import _ext, reference
from .._dispatch import takes_twin
from ..reference.streams import Stream


def causal_conv1d(
    x: mx.array,
    weight: mx.array,
    state: mx.array | None = None,
    *,
    activation: Literal["silu"] | None = "silu",
    starts: mx.array | None = None,
    lengths: mx.array | None = None,
    stream: Stream = None,
) -> tuple[mx.array, mx.array]:
    """A short convolution of each channel over time: ``y_t = activation(sum_j weight[:, j] x_{t - K + 1 + j})``.

    Before a row's first token stand the ``K - 1`` rows of its state. Accumulated in float32, rounded once. A row's bits
    do not depend on the other rows, nor on tokens outside of its range.

    Args:
        x: ``[B, T, C]``.
        weight: ``[C, K]``.
        state: ``[B, K - 1, C]``, or ``[1, K - 1, C]`` or ``[K - 1, C]`` for all rows; ``None`` is zeros. It is not
            written.
        activation: ``"silu"`` or ``None``.
        starts: ``[B]`` integers, clipped to ``0..T``: where each row begins. Tokens before it are passed over.
        lengths: ``[B]`` integers, clipped to ``0..T``: where each row ends.
        stream: Stream or device.

    Returns:
        ``y [B, T, C]``, zeros where a token is passed over, and the last ``K - 1`` inputs of each row,
        ``[B, K - 1, C]``, both in the dtype to which the operands promote: float32, float16 or bfloat16.

    Raises:
        ValueError: Shapes that do not fit, ``C = 0``, an unknown activation, another dtype.
    """
    op = reference.causal_conv1d if takes_twin(stream) else _ext.causal_conv1d
    return op(x, weight, state, activation=activation, starts=starts, lengths=lengths, stream=stream)
