from __future__ import annotations

import mlx.core as mx

from .. import _ext, reference
from .._dispatch import takes_twin
from ..reference.rope import rope_inv_freq
from ..reference.streams import Stream

__all__ = ["qk_norm_rope", "rope", "rope_inv_freq"]


def rope(
    x: mx.array,
    positions: mx.array,
    inv_freq: mx.array,
    *,
    rotary_dim: int | None = None,
    interleaved: bool = False,
    stream: Stream = None,
) -> mx.array:
    """Rotary position embedding: pair ``i`` of the row at position ``p`` turned by the angle ``p inv_freq[i]``.

    ``(a, b)`` becomes ``(a cos - b sin, b cos + a sin)``. In float32 with one rounding; the angle is a float32 product,
    as transformers has it. ``x`` is read through its strides, so that a transposed projection is not copied. Works
    under ``mx.grad``, ``mx.jvp``, ``mx.vmap`` and ``mx.compile`` (also shapeless).

    Args:
        x: ``[..., T, D]``, 1 to 9 dimensions, float32, float16 or bfloat16.
        positions: Integers: ``[T]``, ``[B, T]`` for ``x [B, ..., T, D]``, one for all, or one for each row.
        inv_freq: ``[rotary_dim / 2]``, used as float32; see :func:`rope_inv_freq`.
        rotary_dim: How many of the first columns turn: even, ``D`` by default. The others stay as they are.
        interleaved: Pair ``i`` is columns ``2 i`` and ``2 i + 1`` rather than ``i`` and ``i + rotary_dim / 2``.
        stream: Stream or device.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        ValueError: Shapes that do not fit, an odd ``rotary_dim``, another dtype.

    Source: Su et al., arXiv 2104.09864.
    """
    op = reference.rope if takes_twin(stream) else _ext.rope
    return op(x, positions, inv_freq, rotary_dim=rotary_dim, interleaved=interleaved, stream=stream)


def qk_norm_rope(
    q: mx.array,
    k: mx.array,
    q_weight: mx.array,
    k_weight: mx.array,
    positions: mx.array,
    inv_freq: mx.array,
    eps: float,
    *,
    weight_offset: float = 0.0,
    rotary_dim: int | None = None,
    stream: Stream = None,
) -> tuple[mx.array, mx.array]:
    """``rope(rms_norm(q, q_weight))`` and ``rope(rms_norm(k, k_weight))`` in one launch, with one rounding.

    Args:
        q: ``[B, Hq, T, D]``, or anything with rows of ``D``.
        k: ``[B, Hkv, T, D]``, of as many dimensions.
        q_weight: ``[D]``.
        k_weight: ``[D]``.
        positions: As in :func:`rope`.
        inv_freq: As in :func:`rope`.
        eps: Added to the mean square; finite and not negative.
        weight_offset: 1 for checkpoints that store ``weight - 1`` (Qwen3.5, Gemma 3).
        rotary_dim: As in :func:`rope`.
        stream: Stream or device.

    Returns:
        Arrays of the shapes of ``q`` and ``k``, in the dtype to which they and the weights promote.

    Raises:
        ValueError: As :func:`rope` and :func:`rms_norm`.
    """
    op = reference.qk_norm_rope if takes_twin(stream) else _ext.qk_norm_rope
    return op(
        q,
        k,
        q_weight,
        k_weight,
        positions,
        inv_freq,
        eps,
        weight_offset=weight_offset,
        rotary_dim=rotary_dim,
        stream=stream,
    )
