from __future__ import annotations

from typing import Literal

import mlx.core as mx

from .. import _ext, reference
from .._dispatch import takes_twin
from ..reference.streams import Stream
from .matmul import Precision

SparseActivation = Literal["log1p_relu", "log1p_log1p_relu"]
SparsePooling = Literal["max", "sum"]


def sparse_max_pool(
    hidden: mx.array,
    weight: mx.array,
    bias: mx.array | None = None,
    lengths: mx.array | None = None,
    *,
    activation: SparseActivation = "log1p_relu",
    pooling: SparsePooling = "max",
    precision: Precision | None = None,
    stream: Stream = None,
) -> mx.array:
    """``pool over t of f(hidden[b, t] . weight[v] + bias[v])``: a text as weights of the vocabulary's words (SPLADE).

    The logits ``[B, T, V]`` are never held: they are pooled where they are computed, in float32 with one rounding of
    the result. Tokens past a row's length contribute nothing and are not read; a row without tokens is zeros. A row's
    bits do not depend on the other rows. Works under ``mx.grad``, ``mx.jvp``, ``mx.vmap`` and ``mx.compile`` (also
    shapeless); derivatives, and what is mapped, run in stock ops, which do hold the logits.

    Args:
        hidden: ``[B, T, H]``, any strides: what the vocabulary head takes of each token.
        weight: ``[V, H]``, as checkpoints store the decoder.
        bias: ``[V]`` or ``None``.
        lengths: ``[B]`` integers, clipped to ``0..T``; ``None`` counts every token.
        activation: ``"log1p_relu"`` is ``f(x) = log(1 + max(x, 0))``; ``"log1p_log1p_relu"`` is ``log(1 + f(x))``.
        pooling: ``"max"`` or ``"sum"``.
        precision: As in :func:`matmul`.
        stream: Stream or device.

    Returns:
        ``[B, V]`` in the dtype to which the operands promote: float32, float16 or bfloat16. A NaN in a token makes the
        row NaN.

    Raises:
        ValueError: Shapes that do not fit, ``H = 0``, a dtype other than those three, lengths that are not integers, an
            unknown activation, pooling or precision.

    Source: Formal et al., arXiv 2107.05720 (sum) and 2109.10086 (max); the double logarithm: arXiv 2504.14839.
    """
    op = reference.sparse_max_pool if takes_twin(stream) else _ext.sparse_max_pool
    return op(
        hidden,
        weight,
        bias,
        lengths,
        activation=activation,
        pooling=pooling,
        precision=precision,
        stream=stream,
    )
