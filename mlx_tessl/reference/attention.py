from __future__ import annotations

from functools import reduce
from typing import Literal

import mlx.core as mx

from .integers import as_int32
from .streams import Stream, on

Mask = Literal["causal"] | mx.array
Window = int | tuple[int | None, int | None]
Precision = Literal["exact", "relaxed"]


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
    """Twin of :func:`mlx_tessl.attention`: ``softmax(softcap(scale q k^T) + mask) v`` over the visible keys."""
    del precision
    with on(stream):
        own_keys = k.shape[2]
        if prefix is not None:
            k, v = _behind(prefix[0], k), _behind(prefix[1], v)
        dtype = mx.result_type(q, k, v)
        (B, heads, Tq, _), (_, kv_heads, keys, Dv) = q.shape, v.shape
        if 0 in (B, heads, Tq, keys, Dv):
            return mx.zeros((B, heads, Tq, Dv), dtype)

        # [B, kv_heads, group, T, D]: the query heads of a group share their keys.
        query = mx.unflatten(q.astype(mx.float32), 1, (kv_heads, -1))
        key, value = (mx.expand_dims(x.astype(mx.float32), 2) for x in (k, v))
        rules = _distance_rules(Tq, keys, own_keys, isinstance(mask, str), window)
        rules += _padding_rules(keys, own_keys, lengths, starts)
        bias = None
        if isinstance(mask, mx.array):
            grouped = _grouped(mask, kv_heads)
            if mask.dtype == mx.bool_:
                rules.append(grouped)
            else:
                bias = grouped.astype(dtype).astype(mx.float32)
                rules.append(bias > -mx.inf)
        visible = mx.broadcast_to(
            reduce(mx.logical_and, rules, mx.array(True)), (B, kv_heads, heads // kv_heads, Tq, keys)
        )

        # What no query sees must not matter, even if it is NaN, for which no weight is small enough.
        seen = mx.any(visible, axis=(2, 3))[..., None, :, None]
        key, value = mx.where(seen, key, 0), mx.where(seen, value, 0)

        scores = scale * mx.matmul(query, key.swapaxes(-1, -2))
        if softcap is not None:
            scores = softcap * mx.tanh(scores / softcap)
        if bias is not None:
            scores = scores + mx.where(bias > -mx.inf, bias, 0)
        sink = None if sinks is None else sinks.astype(mx.float32).reshape(kv_heads, -1, 1, 1)
        return mx.flatten(mx.matmul(_weights(scores, visible, sink), value), 1, 2).astype(dtype)


def _weights(scores: mx.array, visible: mx.array, sink: mx.array | None) -> mx.array:
    """The softmax over visible keys, zeros for a query that sees none."""
    scores = mx.where(visible, scores, mx.finfo(mx.float32).min)
    most = mx.max(scores, axis=-1, keepdims=True)
    if sink is not None:
        most = mx.maximum(most, sink)
    most = mx.stop_gradient(most)
    weights = mx.where(visible, mx.exp(scores - most), 0)
    total = mx.sum(weights, axis=-1, keepdims=True)
    if sink is not None:
        total = total + mx.exp(sink - most)
    return weights / mx.where(total > 0, total, 1)


def _behind(prefix: mx.array, own: mx.array) -> mx.array:
    """Each row's own keys or values ``[B, H, T, D]``, with those of the prefix ``[H, P, D]`` before them."""
    return mx.concatenate([mx.broadcast_to(prefix, (own.shape[0], *prefix.shape)), own], axis=2)


def _distance_rules(Tq: int, keys: int, own_keys: int, causal: bool, window: Window | None) -> list[mx.array]:
    """What the distance of a key from a query says of its visibility, ``[Tq, keys]``."""
    key = mx.arange(own_keys - keys, own_keys)
    query = mx.arange(own_keys - Tq, own_keys)[:, None]
    left, right = (window, window) if window is None or isinstance(window, int) else window
    rules = []
    if causal:
        rules.append(key <= query)
    if left is not None:
        rules.append(query - key <= left)
    if right is not None:
        rules.append(key - query <= right)
    return rules


def _padding_rules(keys: int, own_keys: int, lengths: mx.array | None, starts: mx.array | None) -> list[mx.array]:
    """Which of a row's own keys are no padding, ``[B, 1, 1, 1, keys]``; the prefix never is."""
    key = mx.arange(own_keys - keys, own_keys)
    rules = []
    if lengths is not None:
        rules.append(mx.logical_or(key < 0, key < as_int32(lengths).reshape(-1, 1, 1, 1, 1)))
    if starts is not None:
        rules.append(mx.logical_or(key < 0, key >= as_int32(starts).reshape(-1, 1, 1, 1, 1)))
    return rules


def _grouped(mask: mx.array, kv_heads: int) -> mx.array:
    """A mask that broadcasts to ``[B, heads, Tq, keys]``, with its heads in groups."""
    mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    return mx.unflatten(mask, 1, (1, 1) if mask.shape[1] == 1 else (kv_heads, -1))
