from __future__ import annotations

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
            first written: a position need not be wrapped.
        stream: Stream or device.

    Returns:
        An array of the shape and dtype of ``cache``.

    Raises:
        ValueError: Shapes that do not fit, positions that are not integers.
    """
    if takes_twin(stream):
        return reference.kv_store(cache, new, position, stream=stream)
    positions = mx.array(position) if isinstance(position, int) else position
    return _ext.kv_store(cache, new, positions, stream=stream)
