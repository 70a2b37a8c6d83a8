from __future__ import annotations

import mlx.core as mx

from .. import _ext, reference
from .._dispatch import takes_twin
from ..reference.attention import Precision
from ..reference.gated_delta import Gates
from ..reference.streams import Stream


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
    precision: Precision | None = None,
    stream: Stream = None,
) -> tuple[mx.array, mx.array]:
    """The gated delta rule, the recurrence of Qwen3.5's linear attention.

    For each head and token, with a state ``S [Dk, Dv]``::

      S = exp(g_t) S;   u = beta_t (v_t - S^T k_t);   S = S + k_t u^T;   y_t = S^T q_t

    Prompts are computed by chunks of 64 tokens with matrix products, a single token by the recurrence itself. All in
    float32; the state is never rounded to another dtype. Value heads are ``Hv / Hk`` to a key head. A row's bits do not
    depend on the other rows, nor on tokens outside of its range.

    Args:
        q: ``[B, T, Hk, Dk]``.
        k: ``[B, T, Hk, Dk]``.
        v: ``[B, T, Hv, Dv]``; ``Hk`` divides ``Hv``.
        g: ``[B, T, Hv]``, the logarithm of the decay, used as float32.
        beta: ``[B, T, Hv]``, used as float32.
        state: ``[B, Hv, Dv, Dk]``, or ``[1, Hv, Dv, Dk]`` or ``[Hv, Dv, Dk]`` for all rows, used as float32; ``None``
            is zeros. It is not written.
        gates: ``(a, b, A_log, dt_bias)`` in place of ``g`` and ``beta``: ``a, b [B, T, Hv]``, ``A_log, dt_bias [Hv]``,
            with ``g = -exp(A_log) softplus(a + dt_bias)`` and ``beta = sigmoid(b)``.
        starts: ``[B]`` integers, clipped to ``0..T``: where each row begins. Tokens before it are passed over.
        lengths: ``[B]`` integers, clipped to ``0..T``: where each row ends.
        normalize_qk: Divides the rows of q and k by ``sqrt(sum of squares + 1e-6)``, and those of q by ``sqrt(Dk)``.
        precision: How chunks are multiplied on a GPU with matrix units: ``"exact"``, in float32, or ``"relaxed"``:
            operands in float32, the state among them, are truncated to tf32; the state itself stays whole. ``None`` is
            MLX's own rule, the variable ``MLX_ENABLE_TF32``. Elsewhere, and in gradients, products are in float32.
        stream: Stream or device.

    Returns:
        ``y [B, T, Hv, Dv]`` in the dtype to which q, k, v (and a, b) promote, zeros where a token is passed over, and
        the state after each row's last token, ``[B, Hv, Dv, Dk]`` float32.

    Raises:
        ValueError: Shapes that do not fit, no heads, ``Dk = 0``, ``Dv = 0``, both or neither of ``gates`` and
            ``g, beta``, a dtype other than float32, float16 or bfloat16, complex numbers, an unknown ``precision``.

    Source: Yang, Kautz and Hatamizadeh, arXiv 2412.06464; the chunk form is that of Yang et al., arXiv 2406.06484.
    """
    op = reference.gated_delta if takes_twin(stream) else _ext.gated_delta
    return op(
        q,
        k,
        v,
        g,
        beta,
        state,
        gates=gates,
        starts=starts,
        lengths=lengths,
        normalize_qk=normalize_qk,
        precision=precision,
        stream=stream,
    )
