"""The gated delta rule and the causal convolution in float64, token by token."""

from __future__ import annotations

import numpy as np

Array = np.ndarray


def recurrence(
    q: Array, k: Array, v: Array, g: Array, beta: Array, state: Array | None = None, *, normalize_qk: bool = False
) -> tuple[Array, Array]:
    """``y`` and the last state ``[B, Hv, Dv, Dk]``."""
    q, k, v, g, beta = (x.astype(np.float64) for x in (q, k, v, g, beta))
    (B, T, Hk, Dk), (Hv, Dv) = q.shape, v.shape[2:]
    if normalize_qk:
        q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
        q = q / np.sqrt(Dk)
    q, k = (np.repeat(x, Hv // Hk, axis=2) for x in (q, k))
    S = np.zeros((B, Hv, Dv, Dk)) if state is None else np.broadcast_to(state.astype(np.float64), (B, Hv, Dv, Dk))
    y = np.zeros((B, T, Hv, Dv))
    for t in range(T):
        S = S * np.exp(g[:, t])[..., None, None]
        u = beta[:, t, :, None] * (v[:, t] - np.einsum("bhvk,bhk->bhv", S, k[:, t]))
        S = S + u[..., None] * k[:, t, :, None, :]
        y[:, t] = np.einsum("bhvk,bhk->bhv", S, q[:, t])
    return y, S


def gates(a: Array, b: Array, A_log: Array, dt_bias: Array) -> tuple[Array, Array]:
    a, b, A_log, dt_bias = (x.astype(np.float64) for x in (a, b, A_log, dt_bias))
    return -np.exp(A_log) * np.logaddexp(a + dt_bias, 0), 1 / (1 + np.exp(-b))


def convolution(
    x: Array, weight: Array, state: Array | None = None, activation: str | None = "silu"
) -> tuple[Array, Array]:
    """``y`` and the last K - 1 rows."""
    x, weight = x.astype(np.float64), weight.astype(np.float64)
    (B, T, C), K = x.shape, weight.shape[1]
    before = np.zeros((B, K - 1, C)) if state is None else np.broadcast_to(state.astype(np.float64), (B, K - 1, C))
    rows = np.concatenate([before, x], axis=1)
    y = sum(weight[:, j] * rows[:, j : j + T] for j in range(K))
    return (y / (1 + np.exp(-y)) if activation else y), rows[:, T:]
