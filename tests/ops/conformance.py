"""What every op must do, as data: an op joins by adding its ``OpSpec`` to ``SPECS``.

``test_conformance.py`` runs each spec over its cases, dtypes, input layouts and transforms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import mlx_tessl as mt

Arrays = dict[str, np.ndarray]
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Case:
    """Named arrays by shape, and the keywords that go with them."""

    name: str
    shapes: Shapes
    keywords: dict[str, Any] = field(default_factory=dict)

    def arrays(self, seed: int = 0) -> Arrays:
        rng = np.random.default_rng(seed)
        return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in self.shapes.items()}


@dataclass(frozen=True)
class Refusal:
    """Arguments that must raise ``ValueError`` with ``message`` in it, before anything is dispatched."""

    name: str
    shapes: Shapes
    message: str
    keywords: dict[str, Any] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class OpSpec:
    """One op under test.

    ``oracle`` takes float64 arrays and gives the result and the sum of the magnitudes that rounding acts on. The error
    allowed is ``roundings(case) * 2^-24`` of that sum, and one rounding of the result to its dtype.
    """

    name: str
    op: Callable[..., Any]
    twin: Callable[..., Any]
    oracle: Callable[..., tuple[np.ndarray, np.ndarray]]
    roundings: Callable[[Case], float]
    cases: tuple[Case, ...]
    refusals: tuple[Refusal, ...]


def activate(z: np.ndarray, activation: str | None) -> np.ndarray:
    match activation:
        case None:
            return z
        case "relu":
            return np.maximum(z, 0)
        case "silu":
            return z / (1 + np.exp(-z))
        case "gelu":
            return 0.5 * z * (1 + _erf(z * np.sqrt(0.5)))
        case "gelu_tanh":
            return 0.5 * z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))
    raise AssertionError(activation)


def _erf(x: np.ndarray) -> np.ndarray:
    import math

    return np.vectorize(math.erf, otypes=[np.float64])(x)


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
)

SPECS: tuple[OpSpec, ...] = (MATMUL, LINEAR)
