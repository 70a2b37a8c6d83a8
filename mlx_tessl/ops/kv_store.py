from __future__ import annotations

import operator

import mlx.core as mx

from .. import _ext, reference
from .._dispatch import takes_twin
from ..reference.streams import Stream


def kv_store(cache: mx.array, new: mx.array, position: int | mx.array, *, stream: Stream = None) -> mx.array:
    """``cache`` with ``new`` in its rows ``position`` to ``position + T - 1``, counted around its end: a ring.

    The new cache is the result; the old one is not changed. Where nothing else holds the old one when this is evaluated
    (``cache = kv_store(cache, ...)``), its memory is taken over and only the new rows are written; else it is copied.
    Works under ``mx.grad``, ``mx.jvp``, ``mx.vmap`` and ``mx.compile`` (also shapeless); what is mapped runs in stock
    ops.

    Args:
        cache: ``[..., S, D]``, 2 to 9 dimensions, any dtype of 1, 2, 4 or 8 bytes.
        new: ``[..., T, D]`` with ``T <= S``; cast to the dtype of ``cache``.
        position: An integer, or ``[B]`` integers, one for each member of the first axis. Row ``position mod S`` is the
            first written: a position need not be wrapped. An ``int`` fits into 64 bits.
        stream: Stream or device.

    Returns:
        An array of the shape and dtype of ``cache``.

    Raises:
        ValueError: Shapes that do not fit, positions that are not integers.
    """
    op = reference.kv_store if takes_twin(stream) else _ext.kv_store
    return op(cache, new, position if isinstance(position, mx.array) else _as_array(position), stream=stream)


def _as_array(position: int) -> mx.array:
    try:
        number = operator.index(position)
    except TypeError:
        raise TypeError(
            f"[mlx_tessl.kv_store] position is a {type(position).__name__}; it must be an int or an mlx.core.array"
        ) from None
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"[mlx_tessl.kv_store] position is {number}; it must fit into 64 bits")
    return mx.array(number, mx.int32 if -(2**31) <= number < 2**31 else mx.int64)
