"""The activations of the CPU backend over all of float32, in ulps of the exact value, by a product with K = 1.

Observed with AVX2 and with SSE2: silu 2.7, gelu 6.3, gelu_tanh 2.1 |2 u| below 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import mlx.core as mx
import numpy as np
import pytest

import mlx_tessl as mt

# Results at most so large may be 0: e^-87 times what multiplies it.
VANISHED = 2e-36


@pytest.fixture(autouse=True)
def _on_the_cpu() -> Iterator[None]:
    with mx.stream(mx.cpu):
        yield


def activated(x: np.ndarray, activation: str) -> np.ndarray:
    return np.array(mt.matmul(mx.array(x)[:, None], mx.ones((1, 1)), activation=activation))[:, 0]


def every_range() -> np.ndarray:
    """Floats of every exponent and sign, and densely those between -105 and 105."""
    bits = np.arange(0, 2**32, 30011, dtype=np.uint32).view(np.float32)
    dense = np.linspace(-105, 105, 200001, dtype=np.float32)
    x = np.concatenate([bits, dense, np.linspace(-6, 6, 100001, dtype=np.float32)])
    return x[np.isfinite(x)]


def ulps(result: np.ndarray, exact: np.ndarray) -> np.ndarray:
    error = np.abs(result.astype(np.float64) - exact) / np.spacing(np.abs(exact.astype(np.float32))).astype(np.float64)
    return np.where((np.abs(exact) < VANISHED) & (np.abs(result) < VANISHED), 0.0, error)


def sigmoid(z: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(z))
    return np.where(z < 0, e, 1.0) / (1.0 + e)


def twice_u(x: np.ndarray) -> np.ndarray:
    return 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)


def gelu(x: np.ndarray) -> np.ndarray:
    return x * 0.5 * np.vectorize(math.erfc)(-x / math.sqrt(2))


@pytest.mark.parametrize(
    ("activation", "exact", "bound"),
    [
        ("silu", lambda x: x * sigmoid(x), lambda x: 4.0),
        ("gelu", gelu, lambda x: 10.0),
        ("gelu_tanh", lambda x: x * sigmoid(twice_u(x)), lambda x: 4 + 3 * np.where(x < 0, np.abs(twice_u(x)), 0)),
    ],
)
def test_ulps(
    activation: str, exact: Callable[[np.ndarray], np.ndarray], bound: Callable[[np.ndarray], np.ndarray]
) -> None:
    x = every_range()
    wide = x.astype(np.float64)
    error = ulps(activated(x, activation), exact(wide))
    worst = int(np.argmax(error / bound(wide)))
    assert np.all(error <= bound(wide)), f"{error[worst]} ulps at {x[worst]}"


def test_relu_is_exact() -> None:
    x = every_range()
    assert np.array_equal(activated(x, "relu"), np.maximum(x, 0))


@pytest.mark.parametrize("activation", ["relu", "silu", "gelu", "gelu_tanh"])
def test_outside_the_reals(activation: str) -> None:
    """As the formula: x times 0 is NaN for -infinity, which relu does not multiply."""
    special = np.array([np.inf, -np.inf, np.nan, 0.0], np.float32)
    below = 0.0 if activation == "relu" else np.nan
    assert np.array_equal(activated(special, activation), np.array([np.inf, below, np.nan, 0.0]), equal_nan=True)
