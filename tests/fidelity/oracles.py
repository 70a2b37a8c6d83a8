"""What MLX's kernels compute, in float64."""

from __future__ import annotations

import numpy as np

from .numerics import f64


def attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, causal: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """softmax(scale q k^T) v for [heads, length, dimension], and what errors are measured by.

    That is the magnitude of the sum over keys, and for each query the magnitude of its largest score's sum.
    Causal: the last query sees all keys.
    """
    groups = q.shape[0] // k.shape[0]
    q, k, v = f64(q), *(np.repeat(f64(x), groups, axis=0) for x in (k, v))
    scores = scale * q @ k.transpose(0, 2, 1)
    score_magnitude = (scale * np.abs(q) @ np.abs(k).transpose(0, 2, 1)).max(axis=-1, keepdims=True)
    if causal:
        queries, keys = scores.shape[1:]
        scores[:, ~np.tril(np.ones((queries, keys), bool), keys - queries)] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights @ v, weights @ np.abs(v), score_magnitude


def gated_delta(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, g: np.ndarray, beta: np.ndarray, state: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The gated delta rule, S <- g S + beta (v - g S k) k^T and y = S q, step by step: y and the last state.

    q, k: [B, T, Hk, Dk]; v: [B, T, Hv, Dv]; g, beta: [B, T, Hv]; state: [B, Hv, Dv, Dk].
    """
    groups = v.shape[2] // k.shape[2]
    q, k, v, g, beta = np.repeat(f64(q), groups, 2), np.repeat(f64(k), groups, 2), f64(v), f64(g), f64(beta)
    S, y = f64(state).copy(), np.empty_like(v)
    for t in range(v.shape[1]):
        S *= g[:, t, :, None, None]
        delta = beta[:, t, :, None] * (v[:, t] - np.einsum("bhvk,bhk->bhv", S, k[:, t]))
        S += delta[..., None] * k[:, t, :, None, :]
        y[:, t] = np.einsum("bhvk,bhk->bhv", S, q[:, t])
    return y, S


def gated_delta_vjp(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, g: np.ndarray, beta: np.ndarray, state: np.ndarray,
    dy: np.ndarray, dstate: np.ndarray,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Gradients of sum(dy y) + sum(dstate state) by every argument, by the chain rule backwards through the steps."""
    groups = v.shape[2] // k.shape[2]
    heads = k.shape[2]
    q, k, v, g, beta = np.repeat(f64(q), groups, 2), np.repeat(f64(k), groups, 2), f64(v), f64(g), f64(beta)
    S, entries, dy = f64(state), [], f64(dy)
    for t in range(v.shape[1]):
        entries.append(S)
        decayed = S * g[:, t, :, None, None]
        delta = beta[:, t, :, None] * (v[:, t] - np.einsum("bhvk,bhk->bhv", decayed, k[:, t]))
        S = decayed + delta[..., None] * k[:, t, :, None, :]
    dq, dk, dv, dg, dbeta = (np.zeros_like(x) for x in (q, k, v, g, beta))
    dS = f64(dstate).copy()
    for t in reversed(range(v.shape[1])):
        decayed = entries[t] * g[:, t, :, None, None]
        residual = v[:, t] - np.einsum("bhvk,bhk->bhv", decayed, k[:, t])
        delta = beta[:, t, :, None] * residual
        S = decayed + delta[..., None] * k[:, t, :, None, :]
        dq[:, t] = np.einsum("bhvk,bhv->bhk", S, dy[:, t])
        dS += dy[:, t, ..., None] * q[:, t, :, None, :]
        ddelta = np.einsum("bhvk,bhk->bhv", dS, k[:, t])
        dresidual = beta[:, t, :, None] * ddelta
        dbeta[:, t] = (ddelta * residual).sum(-1)
        dv[:, t] = dresidual
        dk[:, t] = np.einsum("bhvk,bhv->bhk", dS, delta) - np.einsum("bhvk,bhv->bhk", decayed, dresidual)
        dS -= dresidual[..., None] * k[:, t, :, None, :]
        dg[:, t] = (dS * entries[t]).sum((-2, -1))
        dS *= g[:, t, :, None, None]

    def of_key_heads(x: np.ndarray) -> np.ndarray:
        return x.reshape(*x.shape[:2], heads, groups, -1).sum(3)

    return {"dq": of_key_heads(dq), "dk": of_key_heads(dk), "dv": dv, "dg": dg, "dbeta": dbeta, "dstate": dS}
