from __future__ import annotations

import mlx.core as mx

from .. import _ext, reference
from .._dispatch import takes_twin
from ..reference.streams import Stream


def argmax(logits: mx.array, softcap: float | None = None, *, stream: Stream = None) -> mx.array:
    """The first index of the greatest number of each row, after ``softcap tanh(logits / softcap)`` where that is given.

    A NaN is never the greatest, infinity is. A row without a number above minus infinity gives 0. An index is constant
    to derivatives.

    Args:
        logits: ``[..., V]``, 1 to 9 dimensions, any strides; float32, float16 or bfloat16.
        softcap: Finite and positive. Logits that it makes equal in float32 are tied.
        stream: Stream or device.

    Returns:
        ``[...]`` uint32.

    Raises:
        ValueError: ``V = 0``, too many dimensions, another dtype, a bad ``softcap``.
    """
    op = reference.argmax if takes_twin(stream) else _ext.argmax
    return op(logits, softcap, stream=stream)


def sample(
    logits: mx.array,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    softcap: float | None = None,
    key: mx.array | None = None,
    stream: Stream = None,
) -> mx.array:
    """An index of each row, drawn from ``softmax(z)`` with ``z = softcap tanh(logits / softcap) / temperature``.

    Drawn as the greatest of ``z`` plus Gumbel noise: the same key gives the same choice. ``top_k`` leaves the ``z``
    that are not below the ``k``-th greatest; ``top_p`` then leaves those not below the threshold from which on they
    first have ``top_p`` of the remaining probability. Ties at a threshold all stay. Both are found without sorting. NaN
    counts as minus infinity; a row without a number above that gives 0. An index is constant to derivatives. Works
    under ``mx.vmap`` and ``mx.compile``, but not a shapeless one: MLX's random numbers need their shape.

    Args:
        logits: ``[..., V]``, 1 to 9 dimensions, any strides; float32, float16 or bfloat16.
        temperature: Finite and not negative; 0 is :func:`argmax`.
        top_k: 1 or more.
        top_p: Above 0, at most 1.
        softcap: Finite and positive.
        key: As of ``mx.random.key``; by default MLX's global one, see ``mx.random.seed``.
        stream: Stream or device.

    Returns:
        ``[...]`` uint32.

    Raises:
        ValueError: As :func:`argmax`, and an argument that is not as said.

    Source: Maddison, Tarlow and Minka, arXiv 1411.0030; Holtzman et al., arXiv 1904.09751 (top_p).
    """
    if not isinstance(logits, mx.array):
        raise TypeError(f"[mlx_tessl.sample] logits is a {type(logits).__name__}; it must be an mlx.core.array")
    if takes_twin(stream):
        return reference.sample(
            logits, temperature=temperature, top_k=top_k, top_p=top_p, softcap=softcap, key=key, stream=stream
        )
    noise = mx.random.gumbel(logits.shape, mx.float32, key, stream=stream)
    return _ext.sample(logits, noise, temperature=temperature, top_k=top_k, top_p=top_p, softcap=softcap, stream=stream)
