from __future__ import annotations

from typing import Literal

import mlx.core as mx

from .. import _ext, reference
from .._dispatch import takes_twin
from ..reference.streams import Stream

Activation = Literal["relu", "silu", "gelu", "gelu_tanh"]
Precision = Literal["exact", "relaxed"]


def matmul(
    a: mx.array,
    b: mx.array,
    c: mx.array | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    bias: mx.array | None = None,
    activation: Activation | None = None,
    precision: Precision | None = None,
    batch_invariant: bool = False,
    stream: Stream = None,
) -> mx.array:
    """``activation(alpha a@b + beta c + bias)`` in one launch, accumulated in float32 and rounded once.

    Operands may have any strides: a transposed one is recognised and not copied, nor is a broadcast batch. Works
    under ``mx.grad``, ``mx.jvp``, ``mx.vmap`` and ``mx.compile`` (also shapeless). The gradient through an activation
    computes the product again instead of keeping it.

    Args:
        a: ``[..., M, K]``, or ``[K]`` as one row, which the result then lacks.
        b: ``[..., K, N]``, or ``[K]`` as one column, which the result then lacks.
        c: Anything that broadcasts to ``[..., M, N]``. Never read when ``beta`` is 0.
        alpha: Factor of the product.
        beta: Factor of ``c``.
        bias: ``[N]``.
        activation: ``"relu"``, ``"silu"``, ``"gelu"`` (exact, by erf) or ``"gelu_tanh"``.
        precision: How float32 operands are multiplied on a GPU with matrix units: ``"exact"``, or ``"relaxed"``
            (operands truncated to tf32). ``None`` is MLX's own rule, the variable ``MLX_ENABLE_TF32``.
        batch_invariant: A row's bits do not depend on how many rows there are, nor on its place among them.
        stream: Stream or device.

    Returns:
        ``[..., M, N]`` in the dtype to which the operands promote: float32, float16 or bfloat16. With ``K = 0`` it is
        ``activation(beta c + bias)``.

    Raises:
        ValueError: Shapes that do not fit, a dtype other than those three, more than 8 batch dimensions, an unknown
            ``activation`` or ``precision``.
    """
    op = reference.matmul if takes_twin(stream) else _ext.matmul
    return op(
        a,
        b,
        c,
        alpha=alpha,
        beta=beta,
        bias=bias,
        activation=activation,
        precision=precision,
        batch_invariant=batch_invariant,
        stream=stream,
    )
