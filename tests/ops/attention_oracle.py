"""Attention in float64, one query at a time, by the definition."""

from __future__ import annotations

import numpy as np


def visible_keys(
    i: int,
    row: int,
    *,
    Tq: int,
    Tk: int,
    P: int,
    causal: bool = False,
    window: int | tuple[int | None, int | None] | None = None,
    lengths: np.ndarray | None = None,
    starts: np.ndarray | None = None,
) -> np.ndarray:
    """Which of the ``P + Tk`` keys query ``i`` sees by its position, and by what is padding in its row."""
    left, right = window if isinstance(window, tuple) else (window, window)
    position = i + Tk - Tq
    visible = np.ones(P + Tk, bool)
    for n, j in enumerate(range(-P, Tk)):
        if causal and j > position:
            visible[n] = False
        if left is not None and j < position - left:
            visible[n] = False
        if right is not None and j > position + right:
            visible[n] = False
        if j >= 0 and lengths is not None and j >= lengths[row]:
            visible[n] = False
        if j >= 0 and starts is not None and j < starts[row]:
            visible[n] = False
    return visible


def attention_oracle(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    scale: float,
    mask: str | np.ndarray | None = None,
    window: int | tuple[int | None, int | None] | None = None,
    lengths: np.ndarray | None = None,
    starts: np.ndarray | None = None,
    sinks: np.ndarray | None = None,
    softcap: float | None = None,
    prefix: tuple[np.ndarray, np.ndarray] | None = None,
) -> np.ndarray:
    B, heads, Tq, _ = q.shape
    Tk, group = k.shape[2], heads // k.shape[1]
    P = 0 if prefix is None else prefix[0].shape[1]
    full_mask = None if mask is None or isinstance(mask, str) else np.broadcast_to(mask, (B, heads, Tq, P + Tk))
    result = np.zeros((B, heads, Tq, v.shape[3]))
    for row, head, i in np.ndindex(B, heads, Tq):
        key, value = (x[row, head // group] for x in (k, v))
        if prefix is not None:
            key, value = (np.concatenate([p[head // group], x]) for p, x in zip(prefix, (key, value), strict=True))
        causal = isinstance(mask, str)
        visible = visible_keys(i, row, Tq=Tq, Tk=Tk, P=P, causal=causal, window=window, lengths=lengths, starts=starts)
        bias = np.zeros(P + Tk)
        if full_mask is not None and full_mask.dtype == np.bool_:
            visible &= full_mask[row, head, i]
        elif full_mask is not None:
            bias = full_mask[row, head, i].astype(np.float64)
            visible &= bias != -np.inf
        if not visible.any():
            continue
        scores = scale * (key[visible] @ q[row, head, i])
        if softcap is not None:
            scores = softcap * np.tanh(scores / softcap)
        scores = scores + bias[visible]
        most = scores.max() if sinks is None else max(scores.max(), float(sinks[head]))
        weights = np.exp(scores - most)
        total = weights.sum() + (0.0 if sinks is None else np.exp(float(sinks[head]) - most))
        result[row, head, i] = weights / total @ value[visible]
    return result
