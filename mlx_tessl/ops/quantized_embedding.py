from __future__ import annotations

import mlx.core as mx

from .. import _ext, reference
from .._dispatch import takes_twin
from ..reference.streams import Stream
from .quantized_matmul import QuantizationMode


def quantized_embedding(
    ids: mx.array,
    w: mx.array,
    scales: mx.array,
    biases: mx.array | None = None,
    *,
    group_size: int | None = None,
    bits: int | None = None,
    mode: QuantizationMode = "affine",
    stream: Stream = None,
) -> mx.array:
    """Rows of a table packed by ``mx.quantize``, decoded as they are gathered.

    Negative ids count from the end, as in MLX's indexing. An id that is no row gives zeros, and no gradient.

    Args:
        ids: Any shape, of an integer dtype.
        w: Packed table ``[V, D bits / 32]``, uint32.
        scales: ``[V, D / group_size]``: a float dtype in mode ``"affine"``, else uint8.
        biases: As ``scales``, in mode ``"affine"`` only.
        group_size: As in :func:`quantized_matmul`.
        bits: As in :func:`quantized_matmul`.
        mode: ``"affine"``, ``"mxfp4"``, ``"mxfp8"`` or ``"nvfp4"``.
        stream: Stream or device.

    Returns:
        ``[*ids.shape, D]`` in the dtype to which ``scales`` and ``biases`` promote, or bfloat16 in the modes whose
        scales are codes, as ``mx.dequantize`` has it.

    Raises:
        ValueError: As :func:`quantized_matmul`; ``ids`` that are not integers.
    """
    op = reference.quantized_embedding if takes_twin(stream) else _ext.quantized_embedding
    return op(ids, w, scales, biases, group_size=group_size, bits=bits, mode=mode, stream=stream)
