"""What attention and its gradients may err by, element by element: the bounds of docs/numerics.md.

u is 2^-24, a rounding of float32. For query i and key j, n keys in all, N queries of all heads that share a key:

    A_i = max over visible j of |scale| sum_d |q_id k_jd| + |mask_ij|, and |sink|   what roundings of a score act on
    e   = (D + 8) u + t        of A_i: D for the sum; 8 for scale, base 2, mask and the subtraction of the maximum;
                               t for operands that are truncated
    r_i = expm1(2 e A_i) + (2.5 n + 16) u      of a weight exp(s_ij - m_i) / l_i, relative: e for its score and for the
                               others, which l_i sums; n for either sum and n / 4 for rescaling it as the maximum
                               grows; 8 each for exponential, rescaling and division
    w   =                      what a weight, and what it multiplies, are rounded by before the product of matrices

    out  (r_i + w) sum_j p_ij |v_j|
    lse  e A_i + (1.25 n + 8) u

The gradients compute the weights again from q, k, m_i and l_i, whose errors r_i has; with b_ij = sum_d |dout_id v_jd|,
delta_i = sum_d dout_id out_id and g_ij = p_ij (dout_i . v_j - delta_i):

    d_i  = Dv u sum_d |dout_id out_id| + sum_d |dout_id| (the bound of out_id)      of delta_i
    G_ij = p_ij (r_i |dout_i . v_j - delta_i| + ((Dv + 4) u + t) b_ij + d_i)        of g_ij
    C_ij = G_ij (1 - tanh^2) + |g_ij| (2 e A_i / softcap + 8 u)                     of c_ij, g_ij behind a softcap
    dq   |scale| sum_j (C_ij + (w + (n + 4) u) |c_ij|) |k_j|
    dk   |scale| sum_i (C_ij + (w + (N + 4) u) |c_ij|) |q_i|
    dv   sum_i p_ij (r_i + w + (N + 4) u) |dout_i|
    dmask   the sum of G_ij + (count + 4) u |g_ij| over the count of scores that share an element
    dsink   sum_i p_i (r_i |delta_i| + d_i + (count + 4) u |delta_i|), p_i the sink's own weight

To each result comes its rounding to the dtype. Where weights are rounded to float16, 2^-25 of a weight is lost besides,
beneath the least normal number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .attention_oracle import Array, Attended

U = 2.0**-24
TF32 = 2.0**-10  # of an operand, by truncation
UNIT_ROUNDOFF = {"float32": U, "float16": 2.0**-11, "bfloat16": 2.0**-8}
SMALLEST = {"float32": 2.0**-126, "float16": 2.0**-25, "bfloat16": 2.0**-126}


@dataclass(frozen=True)
class Arithmetic:
    """How a path rounds: ``truncated`` is t, ``weight`` w, ``least_weight`` what is lost of the smallest weights."""

    dtype: str
    truncated: float = 0.0
    weight: float = 0.0
    least_weight: float = 2.0**-126

    @staticmethod
    def of(dtype: str, path: str, relaxed: bool = False) -> Arithmetic:
        """``path`` is cpu, vector, portable or tensorops."""
        if path == "tensorops" and dtype == "float32" and relaxed:
            return Arithmetic(dtype, truncated=2 * TF32, weight=2 * TF32)
        if path in {"portable", "tensorops"} and dtype != "float32":
            return Arithmetic(dtype, weight=UNIT_ROUNDOFF[dtype], least_weight=SMALLEST[dtype])
        return Arithmetic(dtype)

    def rounded(self, allowed: Array, exact: Array) -> Array:
        """With the rounding of the result."""
        return allowed + UNIT_ROUNDOFF[self.dtype] * np.abs(exact) + SMALLEST[self.dtype]


@dataclass
class Bounds:
    """Of one pass, on a path."""

    a: Attended
    arithmetic: Arithmetic

    def __post_init__(self) -> None:
        a = self.a
        self.depth, self.width, self.keys = a.query.shape[-1], a.value.shape[-1], a.key.shape[2]
        products = abs(a.scale) * np.abs(a.query) @ np.abs(a.key).swapaxes(-1, -2) + np.abs(a.bias)
        self.magnitude = np.max(np.where(a.visible, products, 0.0), axis=-1, initial=0.0)  # A
        if a.sinks is not None:
            self.magnitude = np.maximum(self.magnitude, np.abs(a.sinks)[:, None])
        self.of_score = ((self.depth + 8) * U + self.arithmetic.truncated) * self.magnitude  # e A
        self.of_weight = np.expm1(2 * self.of_score) + (2.5 * self.keys + 16) * U  # r

    def of_sums(self) -> Array:
        """Of the output, before its rounding."""
        a = self.a
        values = np.abs(a.value)
        allowed = (self.of_weight + self.arithmetic.weight)[..., None] * (a.weights @ values)
        least = self.arithmetic.least_weight / np.where(a.sees, a.total, 1.0)
        return allowed + least[..., None] * (a.visible @ values)

    def out(self) -> Array:
        return self.arithmetic.rounded(self.of_sums(), self.a.out)

    def lse(self) -> Array:
        return self.of_score + (1.25 * self.keys + 8) * U

    def gradients(self, dout: Array) -> dict[str, Array]:
        """As :meth:`Attended.gradients`; the mask in full, each score's own."""
        a, arithmetic = self.a, self.arithmetic
        by_scores, delta = a.score_gradients(dout)
        by_weights = dout @ a.value.swapaxes(-1, -2)
        magnitude = np.abs(dout) @ np.abs(a.value).swapaxes(-1, -2)  # b
        of_delta = (np.abs(dout) * (self.width * U * np.abs(a.out) + self.out())).sum(-1)  # d
        of_dots = ((self.width + 4) * U + arithmetic.truncated) * magnitude + of_delta[..., None]
        of_scores = a.weights * (self.of_weight[..., None] * np.abs(by_weights - delta[..., None]) + of_dots)  # G
        slopes = 1 - a.tanh**2
        of_cap = 0.0 if a.softcap is None else 2 * self.of_score[..., None] / a.softcap + 8 * U
        of_products = of_scores * slopes + np.abs(by_scores) * of_cap  # C
        by_products = np.abs(by_scores) * slopes

        group = a.query.shape[1] // a.kv_heads
        queries = group * a.query.shape[2]

        def of_terms(count: int) -> Array:
            rounding = arithmetic.weight + (count + 4) * U
            return of_products + rounding * by_products + arithmetic.least_weight * a.visible

        scale, P = abs(a.scale), a.prefix
        q = scale * of_terms(self.keys) @ np.abs(a.key)
        weights = a.weights * (self.of_weight[..., None] + arithmetic.weight) + arithmetic.least_weight * a.visible
        of_sum = (queries + 4) * U
        k = scale * a.of_kv_heads(of_terms(queries).swapaxes(-1, -2) @ np.abs(a.query))
        v = a.of_kv_heads((weights + of_sum * a.weights).swapaxes(-1, -2) @ np.abs(dout))
        exact = a.gradients(dout)
        # A prefix is summed over the batch: the rows' sums, and as many roundings more.
        rows = a.query.shape[0] * queries * U
        own = {"q": q, "k": k[:, :, P:], "v": v[:, :, P:]}
        own["prefix_k"] = k[:, :, :P].sum(0) + rows * scale * (
            a.of_kv_heads(by_products.swapaxes(-1, -2) @ np.abs(a.query))[:, :, :P].sum(0)
        )
        own["prefix_v"] = v[:, :, :P].sum(0) + rows * a.of_kv_heads(a.weights.swapaxes(-1, -2) @ np.abs(dout))[
            :, :, :P
        ].sum(0)
        bounds = {name: arithmetic.rounded(allowed, exact[name]) for name, allowed in own.items()}
        bounds["mask"] = of_scores
        count = a.query.shape[0] * a.query.shape[2]
        sink = self.of_weight * np.abs(delta) + of_delta + (count + 4) * U * np.abs(delta)
        bounds["sinks"] = (a.sink_weights * sink).sum((0, 2)) + U * np.abs(exact["sinks"]) + 2.0**-126
        return bounds

    def mask(self, dout: Array, shape: tuple[int, ...]) -> Array:
        """Of the gradient of an additive mask of ``shape``."""
        by_scores, _ = self.a.score_gradients(dout)
        count = max(1, by_scores.size // max(1, int(np.prod(shape))))
        allowed = self.gradients(dout)["mask"] + (count + 4) * U * np.abs(by_scores)
        return self.arithmetic.rounded(summed_to(allowed, shape), summed_to(by_scores, shape))


def summed_to(x: Array, shape: tuple[int, ...]) -> Array:
    """The gradient of what was broadcast from ``shape``."""
    full = (1,) * (x.ndim - len(shape)) + shape
    return x.sum(tuple(i for i, n in enumerate(full) if n == 1), keepdims=True).reshape(shape)


def used(computed: Array, exact: Array, allowed: Array) -> float:
    """The largest error as a fraction of what is allowed; NaN where the result is no number."""
    assert computed.shape == exact.shape == allowed.shape
    return float(np.max(np.abs(computed - exact) / allowed, initial=0.0))
