from __future__ import annotations

import mlx.core as mx

from .. import reference
from ..reference.streams import Stream


def score_rows(hidden: mx.array, rows: mx.array, weight: mx.array, ids: mx.array, *, stream: Stream = None) -> mx.array:
    """Log-softmax over a few ids of the vocabulary, at a few rows: what multiple choice asks of a language model.

    ``log_softmax(hidden[rows] @ weight[ids].T)`` in float32; no logits of other rows or ids are computed. A composition
    of MLX's own ops, and differentiable as such.

    Args:
        hidden: ``[N, H]``, after the final norm.
        rows: ``[R]`` integers.
        weight: ``[V, H]``, the head.
        ids: ``[C]`` integers.
        stream: Stream or device.

    Returns:
        ``[R, C]`` float32. A row that ``hidden`` has not, and every row where ``weight`` lacks an id, is NaN.

    Raises:
        ValueError: Shapes that do not fit, rows or ids that are not integers.
    """
    if hidden.ndim != 2 or weight.ndim != 2 or hidden.shape[1] != weight.shape[1]:
        raise ValueError(
            f"[mlx_tessl.score_rows] hidden has shape {hidden.shape} and weight {weight.shape}; "
            "they must be [N, H] and [V, H]"
        )
    for name, indices in (("rows", rows), ("ids", ids)):
        if indices.ndim != 1 or not mx.issubdtype(indices.dtype, mx.integer):
            raise ValueError(
                f"[mlx_tessl.score_rows] {name} has shape {indices.shape} and dtype {indices.dtype}; "
                "it must be one dimension of integers"
            )
    return reference.score_rows(hidden, rows, weight, ids, stream=stream)
