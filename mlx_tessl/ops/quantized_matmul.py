from __future__ import annotations

from typing import Literal

import mlx.core as mx

from .. import _ext, reference
from .._dispatch import takes_twin
from ..reference.streams import Stream
from .matmul import Activation, Precision

QuantizationMode = Literal["affine", "mxfp4", "mxfp8", "nvfp4"]


def quantized_matmul(
    x: mx.array,
    w: mx.array,
    scales: mx.array,
    biases: mx.array | None = None,
    *,
    transpose: bool = True,
    group_size: int | None = None,
    bits: int | None = None,
    mode: QuantizationMode = "affine",
    bias: mx.array | None = None,
    activation: Activation | None = None,
    precision: Precision | None = None,
    stream: Stream = None,
) -> mx.array:
    """``activation(x W + bias)`` with weights packed by ``mx.quantize``, in one launch and summed in float32.

    Weights are decoded as they are read. Works under ``mx.grad`` (for ``x``, ``bias`` and, in mode ``"affine"``,
    ``scales`` and ``biases``), ``mx.jvp``, ``mx.vmap`` over every input and ``mx.compile`` (also shapeless).

    Args:
        x: ``[..., M, K]``, or ``[K]`` as one row, which the result then lacks.
        w: Packed weights, uint32: rows of ``K`` values ``[..., N, K bits / 32]``, or, without ``transpose``, rows of
            ``N`` values ``[..., K, N bits / 32]``. Batch dimensions broadcast with those of ``x``.
        scales: One for each ``group_size`` values of a row of ``w``: a float dtype in mode ``"affine"``, else uint8.
        biases: As ``scales``, in mode ``"affine"`` only: a weight is ``scale * code + bias``.
        transpose: Whether the product is with the transpose of the packed rows.
        group_size: 32, 64 or 128 in mode ``"affine"``, by default 64. The other modes prescribe theirs.
        bits: 2, 3, 4, 5, 6 or 8 in mode ``"affine"``, by default 4. The other modes prescribe theirs.
        mode: ``"affine"``, ``"mxfp4"``, ``"mxfp8"`` or ``"nvfp4"``.
        bias: ``[N]``.
        activation: ``"relu"``, ``"silu"``, ``"gelu"`` (exact, by erf) or ``"gelu_tanh"``.
        precision: As in :func:`matmul`, for float32 ``x``.
        stream: Stream or device.

    Returns:
        ``[..., M, N]`` in the dtype to which ``x``, ``bias`` and, in mode ``"affine"``, ``scales`` and ``biases``
        promote: float32, float16 or bfloat16.

    Raises:
        ValueError: A mode, ``bits`` or ``group_size`` that does not exist; shapes or dtypes of ``w``, ``scales`` and
            ``biases`` that do not belong together under them; an ``x`` or a ``bias`` that does not fit; an unknown
            ``activation`` or ``precision``.
    """
    op = reference.quantized_matmul if takes_twin(stream) else _ext.quantized_matmul
    return op(
        x,
        w,
        scales,
        biases,
        transpose=transpose,
        group_size=group_size,
        bits=bits,
        mode=mode,
        bias=bias,
        activation=activation,
        precision=precision,
        stream=stream,
    )
