"""What an op must do, as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]
Shapes = dict[str, tuple[int, ...]]
Expected = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Case:
    """Named arrays by shape, and the keywords and arrays of integers that go with them.

    Arrays are standard normal, times their factor if they have one.
    """

    name: str
    shapes: Shapes
    keywords: dict[str, Any] = field(default_factory=dict)
    integers: Arrays = field(default_factory=dict)
    factors: dict[str, float] = field(default_factory=dict)

    def arrays(self, seed: int = 0) -> Arrays:
        rng = np.random.default_rng(seed)
        arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in self.shapes.items()}
        return {name: x * np.float32(self.factors.get(name, 1.0)) for name, x in arrays.items()}


@dataclass(frozen=True)
class Refusal:
    """Arguments that must raise ``ValueError`` with ``message`` in it, before anything is dispatched."""

    name: str
    shapes: Shapes
    message: str
    keywords: dict[str, Any] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    integers: Arrays = field(default_factory=dict)


@dataclass(frozen=True)
class OpSpec:
    """One op under test.

    ``oracle`` takes float64 arrays and gives the result and the sum of the magnitudes that rounding acts on; a list of
    such pairs for an op with several results. The error allowed is ``roundings(case) * 2^-24`` of that sum, and one
    rounding of the result to its dtype. Where ``gives_indices`` the result is exact, of dtype uint32, and constant to
    derivatives. ``variants`` are keywords that make different ops of the first case. Inputs that are ``growing`` may
    have more members along their first axis, together; ``shapeless`` tells whether shapeless compile is possible.
    """

    name: str
    op: Callable[..., Any]
    twin: Callable[..., Any]
    oracle: Callable[..., Expected | list[Expected]]
    roundings: Callable[[Case], float]
    cases: tuple[Case, ...]
    refusals: tuple[Refusal, ...]
    growing: tuple[str, ...]
    variants: tuple[dict[str, Any], ...] = ({},)
    gives_indices: bool = False
    shapeless: bool = True


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
