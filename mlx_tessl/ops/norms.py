from __future__ import annotations

from typing import overload

import mlx.core as mx

from .. import _ext, reference
from .._dispatch import takes_twin
from ..reference.streams import Stream

Normed = mx.array | tuple[mx.array, mx.array]


@overload
def rms_norm(
    x: mx.array,
    weight: mx.array | None,
    eps: float,
    *,
    residual: None = None,
    weight_offset: float = 0.0,
    stream: Stream = None,
) -> mx.array: ...
@overload
def rms_norm(
    x: mx.array,
    weight: mx.array | None,
    eps: float,
    *,
    residual: mx.array,
    weight_offset: float = 0.0,
    stream: Stream = None,
) -> tuple[mx.array, mx.array]: ...
def rms_norm(
    x: mx.array,
    weight: mx.array | None,
    eps: float,
    *,
    residual: mx.array | None = None,
    weight_offset: float = 0.0,
    stream: Stream = None,
) -> Normed:
    """``s / sqrt(mean(s^2) + eps) (weight + weight_offset)`` over the last dimension of ``s = x + residual``.

    In float32 with one rounding of each result; the norm is of the sum before its rounding. Rows of any length and
    arrays of any strides are read in place. A row's bits do not depend on the other rows. A NaN makes its row NaN.
    Works under ``mx.grad``, ``mx.jvp``, ``mx.vmap`` and ``mx.compile`` (also shapeless).

    Args:
        x: ``[..., N]``, 1 to 9 dimensions.
        weight: ``[N]``; ``None`` is a norm without weights, and without ``weight_offset``.
        eps: Added to the mean square; finite and not negative.
        residual: Anything that broadcasts to ``x``.
        weight_offset: 1 for checkpoints that store ``weight - 1`` (Qwen3.5, Gemma 1 to 3).
        stream: Stream or device.

    Returns:
        ``[..., N]``, and with a residual also ``s`` of that shape, in the dtype to which the operands promote: float32,
        float16 or bfloat16.

    Raises:
        ValueError: Shapes that do not fit, ``N = 0``, a dtype other than those three, a bad ``eps``.

    Source: Zhang and Sennrich, arXiv 1910.07467.
    """
    if takes_twin(stream):
        return reference.rms_norm(x, weight, eps, residual=residual, weight_offset=weight_offset, stream=stream)
    y, s = _ext.rms_norm(x, weight, eps, residual=residual, weight_offset=weight_offset, stream=stream)
    return y if s is None else (y, s)


@overload
def layer_norm(
    x: mx.array,
    weight: mx.array | None,
    bias: mx.array | None,
    eps: float,
    *,
    residual: None = None,
    stream: Stream = None,
) -> mx.array: ...
@overload
def layer_norm(
    x: mx.array,
    weight: mx.array | None,
    bias: mx.array | None,
    eps: float,
    *,
    residual: mx.array,
    stream: Stream = None,
) -> tuple[mx.array, mx.array]: ...
def layer_norm(
    x: mx.array,
    weight: mx.array | None,
    bias: mx.array | None,
    eps: float,
    *,
    residual: mx.array | None = None,
    stream: Stream = None,
) -> Normed:
    """``(s - mean(s)) / sqrt(var(s) + eps) weight + bias`` over the last dimension of ``s = x + residual``.

    The variance is that of the centered row, divided by ``N``. All else is as in :func:`rms_norm`.

    Args:
        x: ``[..., N]``, 1 to 9 dimensions.
        weight: ``[N]`` or ``None``.
        bias: ``[N]`` or ``None``.
        eps: Added to the variance; finite and not negative.
        residual: Anything that broadcasts to ``x``.
        stream: Stream or device.

    Returns:
        ``[..., N]``, and with a residual also ``s`` of that shape, in the dtype to which the operands promote.

    Raises:
        ValueError: As :func:`rms_norm`.

    Source: Ba, Kiros and Hinton, arXiv 1607.06450.
    """
    if takes_twin(stream):
        return reference.layer_norm(x, weight, bias, eps, residual=residual, stream=stream)
    y, s = _ext.layer_norm(x, weight, bias, eps, residual=residual, stream=stream)
    return y if s is None else (y, s)


def gated_rms_norm(x: mx.array, gate: mx.array, weight: mx.array, eps: float, *, stream: Stream = None) -> mx.array:
    """``rms_norm(x, weight, eps) silu(gate)`` over the last dimension: the norm of Qwen3.5's linear attention.

    The gate is applied after the norm and its weight. All else is as in :func:`rms_norm`.

    Args:
        x: ``[..., N]``, 1 to 9 dimensions.
        gate: Anything that broadcasts to ``x``.
        weight: ``[N]``.
        eps: Added to the mean square; finite and not negative.
        stream: Stream or device.

    Returns:
        ``[..., N]`` in the dtype to which the operands promote.

    Raises:
        ValueError: As :func:`rms_norm`.
    """
    op = reference.gated_rms_norm if takes_twin(stream) else _ext.gated_rms_norm
    return op(x, gate, weight, eps, stream=stream)
