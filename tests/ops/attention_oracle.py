"""Attention and its gradients in float64, by their definitions, whole matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray
Window = int | tuple[int | None, int | None] | None


def visible_keys(
    B: int,
    Tq: int,
    Tk: int,
    P: int,
    *,
    causal: bool = False,
    window: Window = None,
    lengths: Array | None = None,
    starts: Array | None = None,
) -> Array:
    """Which of the ``P + Tk`` keys each query sees by its position, and by what is padding: ``[B, 1, Tq, P + Tk]``."""
    left, right = window if isinstance(window, tuple) else (window, window)
    position = np.arange(Tq)[:, None] + Tk - Tq
    key = np.arange(-P, Tk)
    visible = np.ones((B, 1, Tq, P + Tk), bool)
    if causal:
        visible &= key <= position
    if left is not None:
        visible &= key >= position - left
    if right is not None:
        visible &= key <= position + right
    if lengths is not None:
        visible &= (key < 0) | (key < lengths[:, None, None, None])
    if starts is not None:
        visible &= (key < 0) | (key >= starts[:, None, None, None])
    return visible


@dataclass
class Attended:
    """One pass: what it read, and what came of it. ``K = P + Tk``; keys and values are those of every query head."""

    query: Array  # [B, Hq, Tq, D]
    key: Array  # [B, Hq, K, D], zeros where no query sees it
    value: Array  # [B, Hq, K, Dv], likewise
    kv_heads: int
    prefix: int
    scale: float
    softcap: float | None
    bias: Array  # broadcasts to the scores; 0 where it hides
    visible: Array  # [B, Hq, Tq, K]
    sinks: Array | None
    tanh: Array  # of the products by the cap, 0 without one
    weights: Array  # [B, Hq, Tq, K]
    sink_weights: Array  # [B, Hq, Tq]
    most: Array  # [B, Hq, Tq]: the greatest score, or the sink
    total: Array  # [B, Hq, Tq]: of exp(score - most), sink included; 0 where nothing is visible
    out: Array

    @property
    def sees(self) -> Array:
        """Which queries see something, ``[B, Hq, Tq]``."""
        return self.visible.any(-1)

    @property
    def slopes(self) -> Array:
        """Of the scores by the products of query and key."""
        return self.scale * (1 - self.tanh**2)

    def of_kv_heads(self, x: Array) -> Array:
        """Sums over the query heads that share keys."""
        group = x.shape[1] // self.kv_heads
        return x.reshape(x.shape[0], self.kv_heads, group, *x.shape[2:]).sum(2)

    def score_gradients(self, dout: Array) -> tuple[Array, Array]:
        """By the scores, of which the mask's are a sum, and ``sum(dout out)`` of each query."""
        mean = (dout * self.out).sum(-1, keepdims=True)
        return self.weights * (dout @ self.value.swapaxes(-1, -2) - mean), mean[..., 0]

    def gradients(self, dout: Array) -> dict[str, Array]:
        """By name: of q, k, v, and, where there are such, prefix_k, prefix_v, sinks, and the mask in full."""
        by_scores, mean = self.score_gradients(dout)
        by_products = by_scores * self.slopes
        P = self.prefix
        key = self.of_kv_heads(by_products.swapaxes(-1, -2) @ self.query)
        value = self.of_kv_heads(self.weights.swapaxes(-1, -2) @ dout)
        gradients = {"q": by_products @ self.key, "k": key[:, :, P:], "v": value[:, :, P:], "mask": by_scores}
        gradients["sinks"] = -(self.sink_weights * mean).sum((0, 2))
        gradients["prefix_k"], gradients["prefix_v"] = key[:, :, :P].sum(0), value[:, :, :P].sum(0)
        return gradients


def attend(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    mask: str | Array | None = None,
    causal: bool = False,
    window: Window = None,
    lengths: Array | None = None,
    starts: Array | None = None,
    sinks: Array | None = None,
    softcap: float | None = None,
    prefix: tuple[Array, Array] | None = None,
) -> Attended:
    """``mask`` as the op takes it; ``causal`` besides one that is an array."""
    B, heads, Tq, _ = q.shape
    kv_heads, Tk = k.shape[1:3]
    P = 0 if prefix is None else prefix[0].shape[1]
    if prefix is not None:
        k, v = (np.concatenate([np.broadcast_to(p, (B, *p.shape)), x], 2) for p, x in zip(prefix, (k, v), strict=True))
    key, value = (np.repeat(x, heads // kv_heads, axis=1).astype(np.float64) for x in (k, v))
    causal = causal or isinstance(mask, str)
    visible = visible_keys(B, Tq, Tk, P, causal=causal, window=window, lengths=lengths, starts=starts)
    bias = np.zeros(())
    if isinstance(mask, np.ndarray):
        bias = np.where(mask, 0.0, -np.inf) if mask.dtype == np.bool_ else mask.astype(np.float64)
        visible = visible & (bias != -np.inf)
        bias = np.where(bias == -np.inf, 0.0, bias)
    visible = np.broadcast_to(visible, (B, heads, Tq, P + Tk))
    seen = visible.any(axis=2)[..., None]
    key, value = np.where(seen, key, 0.0), np.where(seen, value, 0.0)
    scores = scale * (q @ key.swapaxes(-1, -2))
    tanh = np.zeros_like(scores)
    if softcap is not None:
        tanh = np.tanh(scores / softcap)
        scores = softcap * tanh
    scores = np.where(visible, scores + bias, -np.inf)
    most = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    sees = visible.any(-1, keepdims=True)
    sink_terms = np.zeros((B, heads, Tq, 1))
    if sinks is not None:
        most = np.maximum(most, sinks[:, None, None])
        sink_terms = np.where(sees, np.exp(sinks[:, None, None] - most), 0.0)
    most = np.where(sees, most, 0.0)
    terms = np.exp(scores - most)
    total = terms.sum(-1, keepdims=True) + sink_terms
    divisor = np.where(sees, total, 1.0)
    weights = terms / divisor
    return Attended(
        query=q,
        key=key,
        value=value,
        kv_heads=kv_heads,
        prefix=P,
        scale=scale,
        softcap=softcap,
        bias=bias,
        visible=visible,
        sinks=sinks,
        tanh=tanh,
        weights=weights,
        sink_weights=(sink_terms / divisor)[..., 0],
        most=most[..., 0],
        total=total[..., 0],
        out=weights @ value,
    )


def attention_oracle(q: Array, k: Array, v: Array, **keywords: Any) -> Array:
    return attend(q, k, v, **keywords).out
