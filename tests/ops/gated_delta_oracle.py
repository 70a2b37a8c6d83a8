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


def recurrence_gradients(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array,
    state: Array,
    dy: Array,
    dstate: Array,
    *,
    normalize_qk: bool = False,
) -> dict[str, Array]:
    """The gradients of q, k, v, g, beta and state ``[B, Hv, Dv, Dk]``, from those of both results."""
    raw = [x.astype(np.float64) for x in (q, k)]
    v, g, beta, dy, dS = (x.astype(np.float64) for x in (v, g, beta, dy, dstate))
    (B, T, Hk, Dk), Hv = q.shape, v.shape[2]
    lengths = [np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6) if normalize_qk else np.ones((1, 1, 1, 1)) for x in raw]
    scales = [Dk**-0.5 if normalize_qk else 1.0, 1.0]
    q, k = (np.repeat(s * x / n, Hv // Hk, axis=2) for x, n, s in zip(raw, lengths, scales, strict=True))
    decayed, updates, after = [], [], []
    S = np.broadcast_to(state.astype(np.float64), dS.shape)
    for t in range(T):
        decayed.append(S * np.exp(g[:, t])[..., None, None])
        updates.append(v[:, t] - np.einsum("bhvk,bhk->bhv", decayed[-1], k[:, t]))
        S = decayed[-1] + (beta[:, t, :, None] * updates[-1])[..., None] * k[:, t, :, None, :]
        after.append(S)
    dq, dk = (np.zeros((B, T, Hv, Dk)) for _ in range(2))
    dv, dg, dbeta = (np.zeros(x.shape) for x in (v, g, beta))
    for t in reversed(range(T)):
        dS = dS + dy[:, t, :, :, None] * q[:, t, :, None, :]
        dq[:, t] = np.einsum("bhvk,bhv->bhk", after[t], dy[:, t])
        du = np.einsum("bhvk,bhk->bhv", dS, k[:, t])
        dbeta[:, t] = (du * updates[t]).sum(-1)
        dv[:, t] = beta[:, t, :, None] * du
        dk[:, t] = np.einsum("bhvk,bhv->bhk", dS, beta[:, t, :, None] * updates[t])
        dk[:, t] -= np.einsum("bhvk,bhv->bhk", decayed[t], dv[:, t])
        dS = dS - dv[:, t, :, :, None] * k[:, t, :, None, :]
        dg[:, t] = (dS * decayed[t]).sum((-1, -2))
        dS = dS * np.exp(g[:, t])[..., None, None]
    found = {"v": dv, "g": dg, "beta": dbeta, "state": dS}
    for name, gradient, x, n, s in zip("qk", (dq, dk), raw, lengths, scales, strict=True):
        gradient = gradient.reshape(B, T, Hk, Hv // Hk, Dk).sum(3)
        along = (gradient * x).sum(-1, keepdims=True) / n**2 if normalize_qk else 0.0
        found[name] = s / n * (gradient - along * x)
    return {name: found[name] for name in ("q", "k", "v", "g", "beta", "state")}


def recurrence_bounds(
    q: Array, k: Array, v: Array, g: Array, beta: Array, state: Array | None = None, *, normalize_qk: bool = False
) -> tuple[Array, Array]:
    """What ``y`` and the last state may err by before their rounding, in roundings of float32: ``docs/numerics.md``.

    For each row s of the state, d the 2-norm of its error. A step is s' = e^g s, r = v - s' . k, s = s' + beta r k:

        d <- e^g max(1, |1 - beta |k|^2|) d                     what the step makes of the error before it
           + (8 |g| + 4) e^g |s|                                the decay and its exponential
           + beta |k| ((Dk + c) |s'| |k| + 6 |v|)               the dot product, r, beta and the sum
           + |s'| + beta |r| |k|
        y: |q| (d + (Dk + c) |s|)

    c is 8, and Dk + 8 more where the lengths of k and q are computed.
    """
    q, k, v, g, beta = (x.astype(np.float64) for x in (q, k, v, g, beta))
    (B, T, Hk, Dk), (Hv, Dv) = q.shape, v.shape[2:]
    if normalize_qk:
        q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
        q = q / np.sqrt(Dk)
    terms = (2 * Dk if normalize_qk else Dk) + (16 if normalize_qk else 8)
    q, k = (np.repeat(x, Hv // Hk, axis=2) for x in (q, k))
    S = np.zeros((B, Hv, Dv, Dk)) if state is None else np.broadcast_to(state.astype(np.float64), (B, Hv, Dv, Dk))
    error, of_y = np.zeros((B, Hv, Dv)), np.zeros((B, T, Hv, Dv))

    def norm(x: Array) -> Array:
        return np.sqrt((x * x).sum(-1))

    for t in range(T):
        decay, strength, length = np.exp(g[:, t])[..., None], beta[:, t][..., None], norm(k[:, t])[..., None]
        before = norm(S)
        S = S * decay[..., None]
        decayed = norm(S)
        r = v[:, t] - np.einsum("bhvk,bhk->bhv", S, k[:, t])
        error = decay * np.maximum(1.0, np.abs(1 - strength * length**2)) * error
        error = error + (8 * np.abs(g[:, t])[..., None] + 4) * decay * before
        error = error + strength * length * (terms * decayed * length + 6 * np.abs(v[:, t]) + np.abs(r)) + decayed
        S = S + (strength * r)[..., None] * k[:, t, :, None, :]
        of_y[:, t] = norm(q[:, t])[..., None] * (error + terms * norm(S))
    return of_y, np.broadcast_to(error[..., None], S.shape)


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


def gates_gradients(
    a: Array, b: Array, A_log: Array, dt_bias: Array, dg: Array, dbeta: Array
) -> tuple[Array, Array, Array, Array]:
    """The gradients of a, b, A_log and dt_bias, from those of g and beta ``[B, T, Hv]``."""
    g, beta = gates(a, b, A_log, dt_bias)
    da = dg * -np.exp(A_log.astype(np.float64)) / (1 + np.exp(-(a.astype(np.float64) + dt_bias)))
    return da, dbeta * beta * (1 - beta), (dg * g).sum((0, 1)), da.sum((0, 1))


def convolution_gradients(
    x: Array, weight: Array, state: Array, dy: Array, dlast: Array, activation: str | None = "silu"
) -> dict[str, Array]:
    """The gradients of x, weight and state ``[B, K - 1, C]``, from those of both results."""
    x, weight, state, dy = (a.astype(np.float64) for a in (x, weight, state, dy))
    T, K = x.shape[1], weight.shape[1]
    rows = np.concatenate([state, x], axis=1)
    sums = sum(weight[:, j] * rows[:, j : j + T] for j in range(K))
    s = 1 / (1 + np.exp(-sums))
    ds = dy * s * (1 + sums * (1 - s)) if activation else dy
    drows = np.zeros(rows.shape)
    drows[:, T:] += dlast
    for j in range(K):
        drows[:, j : j + T] += weight[:, j] * ds
    dweight = np.stack([(ds * rows[:, j : j + T]).sum((0, 1)) for j in range(K)], axis=1)
    return {"x": drows[:, K - 1 :], "weight": dweight, "state": drows[:, : K - 1]}
