from __future__ import annotations

import mlx.core as mx

from .. import _ext, reference
from .._dispatch import takes_twin
from ..reference.streams import Stream


def attention(
    q: mx.array, k: mx.array, v: mx.array, *, scale: float, lengths: mx.array | None = None, stream: Stream = None
) -> mx.array:
    """``softmax(scale q k^T) v`` in which every query of a row sees the row's first ``lengths`` keys.

    On a CPU it runs in blocks that stay in cache and never builds ``Tq x Tk``; keys past a row's length are not read.
    On a GPU it is ``mx.fast.scaled_dot_product_attention``. Works under ``mx.grad``, ``mx.jvp``, ``mx.vmap`` and
    ``mx.compile``.

    Args:
        q: ``[B, Hq, Tq, D]``, any strides.
        k: ``[B, Hkv, Tk, D]``; ``Hkv`` divides ``Hq``.
        v: ``[B, Hkv, Tk, Dv]``.
        scale: Factor of the scores, usually ``D**-0.5``.
        lengths: ``[B]`` integers, clipped to ``0..Tk``; ``None`` shows every key.
        stream: Stream or device.

    Returns:
        ``[B, Hq, Tq, Dv]`` in the dtype to which the operands promote: float32, float16 or bfloat16, accumulated in
        float32. A row of length 0 is zeros.

    Raises:
        ValueError: Shapes that do not fit, a dtype other than those three, lengths that are not integers.
    """
    op = reference.attention if takes_twin(stream) else _ext.attention
    return op(q, k, v, scale=scale, lengths=lengths, stream=stream)
