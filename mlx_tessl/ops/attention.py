from __future__ import annotations

import mlx.core as mx

from .. import _ext, reference
from .._dispatch import takes_twin
from ..reference.attention import Mask, Precision, Window
from ..reference.streams import Stream


def attention(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    *,
    scale: float,
    mask: Mask | None = None,
    window: Window | None = None,
    lengths: mx.array | None = None,
    starts: mx.array | None = None,
    sinks: mx.array | None = None,
    softcap: float | None = None,
    prefix: tuple[mx.array, mx.array] | None = None,
    precision: Precision | None = None,
    stream: Stream = None,
) -> mx.array:
    """``softmax(softcap(scale q k^T) + mask) v`` over the keys that each query sees; never ``Tq x Tk`` in memory.

    A key is seen when ``mask``, ``window``, ``lengths`` and ``starts`` all allow it. Query ``i`` stands at position
    ``i + Tk - Tq`` among the ``Tk`` own keys of its row, whatever is hidden; the prefix is at positions ``-P .. -1``.
    A query that sees no key yields zeros, and zero gradients. What hidden keys and values hold does not matter, NaN
    included. Works under ``mx.grad``, ``mx.jvp``, ``mx.vmap`` and ``mx.compile``, shapeless too. Blocks of keys with
    an online softmax: Dao et al. 2022, arXiv:2205.14135.

    Args:
        q: ``[B, Hq, Tq, D]``, any strides.
        k: ``[B, Hkv, Tk, D]``; ``Hkv`` divides ``Hq``.
        v: ``[B, Hkv, Tk, Dv]``.
        scale: Factor of the scores, usually ``D**-0.5``.
        mask: ``"causal"``: keys at positions up to the query's own. Or an array that broadcasts to
            ``[B, Hq, Tq, P + Tk]``: of booleans, True where a key is seen, or of floats that are added to the scores,
            where only ``-inf`` hides.
        window: ``(left, right)``, how far before and after itself a query sees, inclusive; ``None`` is without limit.
            One number is both.
        lengths: ``[B]`` integers: own keys from ``lengths[b]`` on are hidden (padding on the right).
        starts: ``[B]`` integers: own keys before ``starts[b]`` are hidden (padding on the left).
        sinks: ``[Hq]`` floats: each adds ``exp(sinks[h])`` to the denominator of its head's softmax.
        softcap: Scores become ``softcap tanh(score / softcap)``.
        prefix: Keys ``[Hkv, P, D]`` and values ``[Hkv, P, Dv]`` that every row has before its own, as if copied there.
        precision: How float32 operands are multiplied on a GPU with matrix units: ``"exact"``, or ``"relaxed"``
            (operands truncated to tf32). ``None`` is MLX's own rule, the variable ``MLX_ENABLE_TF32``.
        stream: Stream or device.

    Returns:
        ``[B, Hq, Tq, Dv]`` in the dtype to which queries, keys and values promote: float32, float16 or bfloat16,
        accumulated in float32.

    Raises:
        ValueError: Shapes that do not fit, no heads, a dtype other than those three, a mask that is neither
            ``"causal"`` nor an array of booleans or floats, lengths or starts that are not integers, a negative window,
            a softcap that is not positive, a scale that is not finite, an unknown ``precision``.
    """
    op = reference.attention if takes_twin(stream) else _ext.attention
    return op(
        q,
        k,
        v,
        scale=scale,
        mask=mask,
        window=_within_int32(window),
        lengths=lengths,
        starts=starts,
        sinks=sinks,
        softcap=softcap,
        prefix=prefix,
        precision=precision,
        stream=stream,
    )


def _within_int32(window: Window | None) -> Window | None:
    """A reach beyond any number of keys is none."""

    def reach(side: int | None) -> int | None:
        return None if isinstance(side, int) and side >= 2**31 else side

    return tuple(map(reach, window)) if isinstance(window, tuple) else reach(window)  # type: ignore[return-value]
