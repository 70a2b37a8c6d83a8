from __future__ import annotations

import mlx.core as mx

from .. import _ext, reference
from .._dispatch import takes_twin
from ..reference.streams import Stream


def row_sum(x: mx.array, *, stream: Stream = None) -> mx.array:
    """The sum over the last dimension, in float32 with one rounding.

    The order of the sum depends on the length of a row alone: its bits do not depend on the other rows. Works under
    ``mx.grad``, ``mx.jvp``, ``mx.vmap`` and ``mx.compile`` (also shapeless).

    Args:
        x: ``[..., N]``, 1 to 9 dimensions, any strides; float32, float16 or bfloat16.
        stream: Stream or device.

    Returns:
        ``[...]`` in the dtype of ``x``.

    Raises:
        ValueError: ``N = 0``, too many dimensions, another dtype.
    """
    op = reference.row_sum if takes_twin(stream) else _ext.row_sum
    return op(x, stream=stream)


def row_max(x: mx.array, *, stream: Stream = None) -> mx.array:
    """The greatest element of the last dimension, exactly; NaN where there is one. Otherwise as :func:`row_sum`."""
    op = reference.row_max if takes_twin(stream) else _ext.row_max
    return op(x, stream=stream)


def logsumexp(x: mx.array, *, stream: Stream = None) -> mx.array:
    """``log(sum(exp(x)))`` over the last dimension, in float32 with one rounding. Otherwise as :func:`row_sum`.

    Minus infinity for a row of that alone, infinity for one that has it, NaN for one with a NaN.
    """
    op = reference.logsumexp if takes_twin(stream) else _ext.logsumexp
    return op(x, stream=stream)


def softmax(x: mx.array, axis: int = -1, *, stream: Stream = None) -> mx.array:
    """``exp(x) / sum(exp(x))`` over an axis, in float32 with one rounding.

    A row of minus infinity alone is uniform, as the limit of rows of one ever lower number; a NaN makes its row NaN.
    Strides, transforms and errors are as in :func:`row_sum`.

    Args:
        x: 1 to 9 dimensions, not empty along ``axis``; float32, float16 or bfloat16.
        axis: The axis that sums to one.
        stream: Stream or device.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        ValueError: Also an ``axis`` that ``x`` has not.
    """
    op = reference.softmax if takes_twin(stream) else _ext.softmax
    return op(x, axis, stream=stream)


def l2_normalize(x: mx.array, eps: float, *, stream: Stream = None) -> mx.array:
    """``x / max(|x|, eps)`` over the last dimension, in float32 with one rounding: a zero row stays zero.

    Strides, transforms and errors are as in :func:`row_sum`. The norm itself must be a float32: elements beyond 1e19
    overflow it.

    Args:
        x: ``[..., N]``, 1 to 9 dimensions, any strides; float32, float16 or bfloat16.
        eps: Least norm to divide by; finite and positive. PyTorch's default is 1e-12.
        stream: Stream or device.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        ValueError: Also an ``eps`` that is not so.
    """
    op = reference.l2_normalize if takes_twin(stream) else _ext.l2_normalize
    return op(x, eps, stream=stream)
