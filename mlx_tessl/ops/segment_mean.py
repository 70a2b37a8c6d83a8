from __future__ import annotations

import mlx.core as mx

from .. import _ext, reference
from .._dispatch import takes_twin
from ..reference.streams import Stream


def segment_mean(x: mx.array, starts: mx.array, lengths: mx.array, *, stream: Stream = None) -> mx.array:
    """The mean of each of several runs of rows: mean pooling of ragged sequences that are stacked, or padded.

    Segment ``s`` is rows ``starts[s]`` to ``starts[s] + lengths[s] - 1`` of those that there are; the mean of none is
    zeros. In float32 with one rounding and a fixed order. Segments may overlap. Rows of no segment are not read, and a
    NaN stays in the means that it is of. Works under ``mx.grad``, ``mx.jvp``, ``mx.vmap`` and ``mx.compile`` (also
    shapeless); what is mapped runs in stock ops.

    Args:
        x: ``[R, N]``, any strides; float32, float16 or bfloat16.
        starts: ``[S]`` integers.
        lengths: ``[S]`` integers.
        stream: Stream or device.

    Returns:
        ``[S, N]`` in the dtype of ``x``.

    Raises:
        ValueError: Shapes or dtypes other than these, ``N = 0``.
    """
    op = reference.segment_mean if takes_twin(stream) else _ext.segment_mean
    return op(x, starts, lengths, stream=stream)
