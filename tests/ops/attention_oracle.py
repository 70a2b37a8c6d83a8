"""Attention and its gradients in float64, by their definitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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


@dataclass
class Attended:
    """One pass: what it read, and the weights ``[B, Hq, Tq, P + Tk]`` that it gave."""

    query: np.ndarray
    key: np.ndarray  # of every query head, behind the prefix; zeros where no query sees it
    value: np.ndarray
    weights: np.ndarray
    sink_weights: np.ndarray  # [B, Hq, Tq]
    slopes: np.ndarray  # of the scores by the products
    out: np.ndarray


def attend(
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
) -> Attended:
    B, heads, Tq, _ = q.shape
    Tk, group = k.shape[2], heads // k.shape[1]
    P = 0 if prefix is None else prefix[0].shape[1]
    if prefix is not None:
        k, v = (np.concatenate([np.broadcast_to(p, (B, *p.shape)), x], 2) for p, x in zip(prefix, (k, v), strict=True))
    key, value = (np.repeat(x, group, axis=1).astype(np.float64) for x in (k, v))
    positional: dict[str, Any] = {"causal": isinstance(mask, str), "window": window, "lengths": lengths}
    rows = [[visible_keys(i, b, Tq=Tq, Tk=Tk, P=P, starts=starts, **positional) for i in range(Tq)] for b in range(B)]
    visible = np.array(rows, bool).reshape(B, 1, Tq, P + Tk)
    bias = np.zeros(())
    if isinstance(mask, np.ndarray):
        bias = np.where(mask, 0.0, -np.inf) if mask.dtype == np.bool_ else mask.astype(np.float64)
        visible = visible & (bias != -np.inf)
        bias = np.where(bias == -np.inf, 0.0, bias)
    visible = np.broadcast_to(visible, (B, heads, Tq, P + Tk))
    seen = visible.any(axis=2)[..., None]
    key, value = np.where(seen, key, 0.0), np.where(seen, value, 0.0)
    scores = scale * (q @ key.swapaxes(-1, -2))
    slopes = np.full(scores.shape, scale)
    if softcap is not None:
        capped = np.tanh(scores / softcap)
        scores, slopes = softcap * capped, slopes * (1 - capped**2)
    scores = np.where(visible, scores + bias, -np.inf)
    most = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        most = np.maximum(most, sinks[:, None, None])
    most = np.where(most == -np.inf, 0.0, most)
    weights = np.exp(scores - most)
    total = weights.sum(-1, keepdims=True)
    sink_weights = np.zeros((B, heads, Tq, 1))
    if sinks is not None:
        sink_weights = sink_weights + np.exp(sinks[:, None, None] - most)
    total = total + sink_weights
    total = np.where(total == 0, 1.0, total)
    weights = weights / total
    return Attended(q, key, value, weights, (sink_weights / total)[..., 0], slopes, weights @ value)


def attention_oracle(q: np.ndarray, k: np.ndarray, v: np.ndarray, **keywords: Any) -> np.ndarray:
    return attend(q, k, v, **keywords).out


def attention_gradients(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, dout: np.ndarray, **keywords: Any
) -> dict[str, np.ndarray]:
    """By name: of q, k, v, and where there are such, ``prefix_k``, ``prefix_v``, sinks, and the mask in full."""
    a = attend(q, k, v, **keywords)
    kv_heads, prefix = k.shape[1], keywords.get("prefix")
    P = 0 if prefix is None else prefix[0].shape[1]
    by_weights = dout @ a.value.swapaxes(-1, -2)
    mean = (dout * a.out).sum(-1, keepdims=True)
    by_scores = a.weights * (by_weights - mean)
    by_products = by_scores * a.slopes

    def of_group(x: np.ndarray) -> np.ndarray:
        return x.reshape(x.shape[0], kv_heads, -1, *x.shape[2:]).sum(2)

    key = of_group(by_products.swapaxes(-1, -2) @ a.query)
    value = of_group(a.weights.swapaxes(-1, -2) @ dout)
    gradients = {"q": by_products @ a.key, "k": key[:, :, P:], "v": value[:, :, P:], "mask": by_scores}
    gradients["sinks"] = -(a.sink_weights * mean[..., 0]).sum((0, 2))
    gradients["prefix_k"], gradients["prefix_v"] = key[:, :, :P].sum(0), value[:, :, :P].sum(0)
    return gradients
