"""Matrix products."""

from __future__ import annotations

from typing import Any

import numpy as np

import mlx_tessl as mt

from .spec import Case, OpSpec, Refusal, activate


def matmul_oracle(
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray | float = 0.0,
    bias: np.ndarray | float = 0.0,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    activation: str | None = None,
    **_: Any,
) -> tuple[np.ndarray, np.ndarray]:
    alpha, beta = float(np.float32(alpha)), float(np.float32(beta))
    z = alpha * (a @ b) + beta * c + bias
    magnitude = abs(alpha) * (np.abs(a) @ np.abs(b)) + abs(beta) * np.abs(c) + np.abs(bias)
    return activate(z, activation), magnitude


def linear_oracle(
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray | float = 0.0,
    residual: np.ndarray | float = 0.0,
    *,
    activation: str | None = None,
    **_: Any,
) -> tuple[np.ndarray, np.ndarray]:
    y, magnitude = matmul_oracle(x, weight.T, bias=bias, activation=activation)
    return y + residual, magnitude + np.abs(residual)


def _roundings_of_product(case: Case) -> float:
    # gamma_K of the sum, and a few for the epilogue: no activation here has a slope beyond 1.13 or errs by over 4 ulp.
    shape = case.shapes.get("a") or case.shapes["x"]
    return 1.13 * (shape[-1] + 4) + 8


ACTIVATIONS = ({}, *({"activation": name} for name in ("relu", "silu", "gelu", "gelu_tanh")))

MATMUL = OpSpec(
    name="matmul",
    op=mt.matmul,
    twin=mt.reference.matmul,
    oracle=matmul_oracle,
    roundings=_roundings_of_product,
    cases=(
        Case("square", {"a": (64, 64), "b": (64, 64)}),
        Case("ragged", {"a": (37, 53), "b": (53, 71)}),
        Case("one_row", {"a": (1, 300), "b": (300, 65)}),
        Case("one_column", {"a": (65, 300), "b": (300, 1)}),
        Case("inner_one", {"a": (33, 1), "b": (1, 17)}),
        Case("vector_matrix", {"a": (19,), "b": (19, 5)}),
        Case("matrix_vector", {"a": (5, 19), "b": (19,)}),
        Case("batched", {"a": (3, 2, 20, 11), "b": (3, 2, 11, 18)}),
        Case("broadcast_left", {"a": (5, 20, 11), "b": (11, 18)}),
        Case("broadcast_right", {"a": (20, 11), "b": (4, 11, 18)}),
        Case("broadcast_both", {"a": (3, 1, 7, 11), "b": (2, 11, 5)}),
        Case(
            "epilogue",
            {"a": (2, 33, 47), "b": (47, 29), "c": (33, 29), "bias": (29,)},
            {"alpha": 0.7, "beta": -1.3, "activation": "gelu"},
        ),
        Case("relu", {"a": (33, 47), "b": (47, 29)}, {"activation": "relu"}),
        Case("silu", {"a": (33, 47), "b": (47, 29), "bias": (29,)}, {"activation": "silu"}),
        Case("gelu_tanh", {"a": (33, 47), "b": (47, 29)}, {"activation": "gelu_tanh", "alpha": 0.5}),
        Case("beta_zero", {"a": (9, 8), "b": (8, 7), "c": (9, 7)}, {"beta": 0.0}),
        Case("column_c", {"a": (9, 8), "b": (8, 7), "c": (9, 1)}, {"beta": 2.0}),
        Case("batch_invariant", {"a": (37, 53), "b": (53, 71)}, {"batch_invariant": True}),
        Case("exact", {"a": (37, 53), "b": (53, 71)}, {"precision": "exact"}),
        Case("empty_m", {"a": (0, 8), "b": (8, 7)}),
        Case("empty_n", {"a": (9, 8), "b": (8, 0)}),
        Case("empty_k", {"a": (9, 0), "b": (0, 7), "c": (9, 7), "bias": (7,)}, {"beta": 0.5, "activation": "silu"}),
        Case("empty_batch", {"a": (0, 3, 8), "b": (8, 7)}),
    ),
    refusals=(
        Refusal("inner", {"a": (3, 4), "b": (5, 6)}, "share the dimension K"),
        Refusal("batch", {"a": (2, 3, 4), "b": (3, 4, 5)}, "do not broadcast"),
        Refusal("c", {"a": (3, 4), "b": (4, 5), "c": (2, 5)}, "c has shape (2,5)", {"beta": 1.0}),
        Refusal("c_batch", {"a": (3, 4), "b": (4, 5), "c": (2, 3, 5)}, "c has shape", {"beta": 1.0}),
        Refusal("bias", {"a": (3, 4), "b": (4, 5), "bias": (3,)}, "bias has shape (3)"),
        Refusal("scalar", {"a": (), "b": (4, 5)}, "a has shape"),
        Refusal("ndim", {"a": (1,) * 11 + (3, 4), "b": (4, 5)}, "dimensions"),
        Refusal("activation", {"a": (3, 4), "b": (4, 5)}, "activation is 'tanh'", {"activation": "tanh"}),
        Refusal("precision", {"a": (3, 4), "b": (4, 5)}, "precision is 'fast'", {"precision": "fast"}),
        Refusal("int", {"a": (3, 4), "b": (4, 5)}, "promote to int32", dtypes={"a": "int32", "b": "int32"}),
        Refusal("complex", {"a": (3, 4), "b": (4, 5)}, "promote to complex64", dtypes={"a": "complex64"}),
    ),
    growing=("a",),
    variants=ACTIVATIONS,
)

LINEAR = OpSpec(
    name="linear",
    op=mt.linear,
    twin=mt.reference.linear,
    oracle=linear_oracle,
    roundings=_roundings_of_product,
    cases=(
        Case("plain", {"x": (37, 53), "weight": (71, 53)}),
        Case("vector", {"x": (53,), "weight": (71, 53), "bias": (71,)}),
        Case("sequence", {"x": (2, 5, 53), "weight": (71, 53), "bias": (71,)}, {"activation": "gelu"}),
        Case("residual", {"x": (2, 5, 53), "weight": (71, 53), "bias": (71,), "residual": (2, 5, 71)}),
        Case(
            "everything",
            {"x": (4, 53), "weight": (71, 53), "bias": (71,), "residual": (71,)},
            {"activation": "gelu_tanh"},
        ),
        Case("empty", {"x": (0, 53), "weight": (71, 53)}),
    ),
    refusals=(
        Refusal("inner", {"x": (3, 4), "weight": (5, 6)}, "x and weight share the dimension K"),
        Refusal("weight", {"x": (3, 4), "weight": (2, 5, 4)}, "weight has shape"),
        Refusal("bias", {"x": (3, 4), "weight": (5, 4), "bias": (4,)}, "bias has shape"),
        Refusal("residual", {"x": (3, 4), "weight": (5, 4), "residual": (2, 3, 5)}, "residual has shape"),
        Refusal("activation", {"x": (3, 4), "weight": (5, 4)}, "activation is 'swish'", {"activation": "swish"}),
    ),
    growing=("x", "residual"),
    variants=ACTIVATIONS,
)

SPECS = (
    MATMUL,
    LINEAR,
)
