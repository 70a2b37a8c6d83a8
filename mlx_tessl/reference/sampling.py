from __future__ import annotations

import mlx.core as mx

from .streams import Stream, on


def argmax(logits: mx.array, softcap: float | None = None, *, stream: Stream = None) -> mx.array:
    """Twin of :func:`mlx_tessl.argmax`: the first index of the greatest number of each row, 0 where there is none."""
    with on(stream):
        return _first_greatest(_scores(logits, softcap, 1.0))


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
    """Twin of :func:`mlx_tessl.sample`: thresholds from sorted scores, then the greatest with its noise."""
    if temperature == 0:
        return argmax(logits, softcap, stream=stream)
    with on(stream):
        noise = mx.random.gumbel(logits.shape, mx.float32, key)
        z = _scores(logits, softcap, temperature)
        left = z
        if top_k is not None and top_k < z.shape[-1]:
            least = mx.sort(z, axis=-1)[..., -top_k, None]
            left = mx.where(z >= least, z, -mx.inf)
        if top_p is not None and top_p < 1:
            left = mx.where(z >= _nucleus_threshold(left, top_p), left, -mx.inf)
        return _first_greatest(mx.where(left == -mx.inf, -mx.inf, left + noise))


def _scores(logits: mx.array, softcap: float | None, temperature: float) -> mx.array:
    z = logits.astype(mx.float32)
    if softcap is not None:
        z = softcap * mx.tanh(z / softcap)
    z = z / temperature
    return mx.where(mx.isnan(z), -mx.inf, z)


def _nucleus_threshold(z: mx.array, top_p: float) -> mx.array:
    """The greatest of z for which it and all above it have ``top_p`` of the sum of ``exp(z)``."""
    most = mx.max(z, axis=-1, keepdims=True)
    descending = -mx.sort(-z, axis=-1)
    mass = mx.cumsum(mx.where(descending == most, 1.0, mx.exp(descending - most)), axis=-1)
    first = mx.sum(mass < top_p * mass[..., -1:], axis=-1, keepdims=True)
    return mx.take_along_axis(descending, first, axis=-1)


def _first_greatest(z: mx.array) -> mx.array:
    V = z.shape[-1]
    greatest = mx.logical_and(z == mx.max(z, axis=-1, keepdims=True), z > -mx.inf)
    first = mx.min(mx.where(greatest, mx.arange(V), V), axis=-1)
    return mx.where(first == V, 0, first).astype(mx.uint32)
