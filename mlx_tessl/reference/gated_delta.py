from __future__ import annotations

import mlx.core as mx

from .integers import as_int32
from .streams import Stream, on

Gates = tuple[mx.array, mx.array, mx.array, mx.array]

CHUNK = 64


def gated_delta(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    g: mx.array | None = None,
    beta: mx.array | None = None,
    state: mx.array | None = None,
    *,
    gates: Gates | None = None,
    starts: mx.array | None = None,
    lengths: mx.array | None = None,
    normalize_qk: bool = False,
    precision: str | None = None,
    stream: Stream = None,
) -> tuple[mx.array, mx.array]:
    """Twin of :func:`mlx_tessl.gated_delta`: whole chunks of 64 tokens by matrix products, one after another."""
    del precision
    with on(stream):
        (B, T, Hk, Dk), (Hv, Dv) = q.shape, v.shape[2:]
        inside = visible_tokens(B, T, starts, lengths)
        if gates is not None:
            a, b, A_log, dt_bias = gates
            dtype = mx.result_type(q, k, v, a, b)
            g, beta = decay_and_strength(_hidden(a, inside), _hidden(b, inside), A_log, dt_bias)
        else:
            assert g is not None
            assert beta is not None
            dtype = mx.result_type(q, k, v)
        # A token outside of its row's range neither decays the state nor adds to it. What it holds is hidden before
        # anything is computed of it: a gradient of zero through a NaN would be NaN.
        q, k, v, g, beta = (_hidden(x.astype(mx.float32), inside) for x in (q, k, v, g, beta))
        if normalize_qk:
            q, k = _l2_normalize(q) * Dk**-0.5, _l2_normalize(k)
        state = mx.zeros((Hv, Dv, Dk)) if state is None else state.astype(mx.float32)
        S = mx.broadcast_to(state, (B, Hv, Dv, Dk)).swapaxes(-1, -2)
        q, k = (mx.repeat(x, Hv // Hk, axis=2) for x in (q, k))
        y, S = _over_chunks(q, k, v, g, beta, S)
        return y.astype(dtype), S.swapaxes(-1, -2)


def decay_and_strength(a: mx.array, b: mx.array, A_log: mx.array, dt_bias: mx.array) -> tuple[mx.array, mx.array]:
    """``g = -exp(A_log) softplus(a + dt_bias)`` and ``beta = sigmoid(b)``, in float32."""
    a, b, A_log, dt_bias = (x.astype(mx.float32) for x in (a, b, A_log, dt_bias))
    return -mx.exp(A_log) * mx.logaddexp(a + dt_bias, 0.0), mx.sigmoid(b)


def visible_tokens(B: int, T: int, starts: mx.array | None, lengths: mx.array | None) -> mx.array | None:
    """``[B, T]``: which tokens lie in ``[starts, lengths)``; None when all do."""
    inside = None
    t = mx.arange(T)
    if starts is not None:
        inside = mx.broadcast_to(t >= as_int32(starts)[:, None], (B, T))
    if lengths is not None:
        before_end = mx.broadcast_to(t < as_int32(lengths)[:, None], (B, T))
        inside = before_end if inside is None else mx.logical_and(inside, before_end)
    return inside


def _hidden(x: mx.array, inside: mx.array | None) -> mx.array:
    """``x [B, T, ...]`` with zeros for the tokens that are not inside."""
    if inside is None:
        return x
    return mx.where(inside.reshape(*inside.shape, *[1] * (x.ndim - 2)), x, mx.array(0.0, x.dtype))


def _l2_normalize(x: mx.array) -> mx.array:
    return x * mx.rsqrt(mx.sum(x * x, axis=-1, keepdims=True) + 1e-6)


def _over_chunks(
    q: mx.array, k: mx.array, v: mx.array, g: mx.array, beta: mx.array, S: mx.array
) -> tuple[mx.array, mx.array]:
    """``y [B, T, H, Dv]`` and the last state ``[B, H, Dk, Dv]``; all operands have H heads.

    Within a chunk, with G the running sum of g and L[i, j] = exp(G_i - G_j) for j <= i:

      A = strictly lower part of beta_i (k_i . k_j) L[i, j],    W = (I + A)^-1
      U = W (beta v) - W (beta exp(G) k) S
      y = exp(G) q S + lower part of ((q_i . k_j) L[i, j]) U
      S = exp(G_last) S + k^T (exp(G_last - G) U)
    """
    B, T, H, Dv = v.shape
    C = max(1, min(CHUNK, T))
    N = (T + C - 1) // C

    def chunks(x: mx.array) -> mx.array:
        """[B, T, H, ...] to [B, H, N, C, ...], zeros past the end."""
        x = mx.pad(x, [(0, 0), (0, N * C - T)] + [(0, 0)] * (x.ndim - 2))
        return mx.moveaxis(x.reshape(B, N, C, *x.shape[2:]), 3, 1)

    q, k, v, g, beta = (chunks(x) for x in (q, k, v, g, beta))
    decays = mx.exp(_sums_between(g))
    since_start = mx.exp(mx.cumsum(g, axis=-1))[..., None]
    beta = beta[..., None]
    W = _unit_lower_inverse(mx.tril(beta * mx.matmul(k, k.swapaxes(-1, -2)) * decays, -1))
    u = mx.matmul(W, beta * v)
    w = mx.matmul(W, beta * since_start * k)
    scores = mx.tril(mx.matmul(q, k.swapaxes(-1, -2)) * decays)
    q = since_start * q
    k = decays[..., -1, :, None] * k
    last = since_start[..., -1:, :]

    ys = []
    for n in range(N):
        U = u[:, :, n] - mx.matmul(w[:, :, n], S)
        ys.append(mx.matmul(q[:, :, n], S) + mx.matmul(scores[:, :, n], U))
        S = last[:, :, n] * S + mx.matmul(k[:, :, n].swapaxes(-1, -2), U)
    if not ys:
        return mx.zeros((B, 0, H, Dv)), S
    y = mx.moveaxis(mx.stack(ys, axis=2), 1, 3).reshape(B, N * C, H, Dv)
    return y[:, :T], S


def _sums_between(g: mx.array) -> mx.array:
    """``[..., i, j]``: the sum of ``g[j + 1 .. i]`` for j <= i, minus infinity elsewhere.

    Summed as such, not as the difference of two running sums, in which a strong decay would swallow a weak one.
    """
    C = g.shape[-1]
    later = mx.tril(mx.ones((C, C), mx.bool_), -1)
    sums = mx.cumsum(mx.where(later, g[..., None], 0.0), axis=-2)
    return mx.where(mx.tril(mx.ones((C, C), mx.bool_)), sums, -mx.inf)


def _unit_lower_inverse(A: mx.array) -> mx.array:
    """``(I + A)^-1`` for a strictly lower ``A``, by doubling the size of the inverted diagonal blocks.

    The inverse of ``[[P, 0], [R, Q]]`` has ``-Q^-1 R P^-1`` below its diagonal.
    """
    C = A.shape[-1]
    i = mx.arange(C)
    W = mx.broadcast_to(mx.eye(C), A.shape)
    size = 1
    while size < C:
        block = i // size
        below = (block[:, None] == block[None] + 1) & (block[:, None] % 2 == 1)
        W = W - mx.matmul(mx.matmul(W, mx.where(below, A, 0.0)), W)
        size *= 2
    return W
