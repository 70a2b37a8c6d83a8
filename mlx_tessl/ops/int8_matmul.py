from __future__ import annotations

import mlx.core as mx

from .. import _ext, reference
from .._dispatch import takes_twin
from ..reference.streams import Stream
from .matmul import Activation


def int8_matmul(
    a: mx.array,
    b: mx.array,
    *,
    scale_a: mx.array | None = None,
    scale_b: mx.array | None = None,
    bias: mx.array | None = None,
    activation: Activation | None = None,
    dtype: mx.Dtype | None = None,
    stream: Stream = None,
) -> mx.array:
    """``a @ b`` of int8, exact in int32; or ``activation(a@b * scale_a * scale_b + bias)`` in one launch.

    The sum is exact either way; scales, bias and activation are float32 arithmetic on it, rounded once. Operands may
    have any strides, as in :func:`matmul`. Works under ``mx.vmap`` and ``mx.compile`` (also shapeless), and, for
    scales and bias, under ``mx.grad`` and ``mx.jvp``.

    Args:
        a: ``[..., M, K]`` int8, or ``[K]`` as one row, which the result then lacks.
        b: ``[..., K, N]`` int8, or ``[K]`` as one column, which the result then lacks.
        scale_a: A factor for each row: anything that broadcasts to ``[..., M]``.
        scale_b: A factor for each column: anything that broadcasts to ``[..., N]``.
        bias: ``[N]``.
        activation: ``"relu"``, ``"silu"``, ``"gelu"`` (exact, by erf) or ``"gelu_tanh"``.
        dtype: Of the result. By default int32 when neither scales nor bias nor activation are given, else the dtype to
            which scales and bias promote.
        stream: Stream or device.

    Returns:
        ``[..., M, N]`` in int32, float32, float16 or bfloat16.

    Raises:
        ValueError: Operands that are not int8; a ``K`` over 131071, with which a sum could leave int32; shapes that do
            not fit; a ``dtype`` other than those four, or int32 with scales, a bias or an activation.
    """
    op = reference.int8_matmul if takes_twin(stream) else _ext.int8_matmul
    return op(a, b, scale_a=scale_a, scale_b=scale_b, bias=bias, activation=activation, dtype=dtype, stream=stream)
