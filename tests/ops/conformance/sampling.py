"""Choosing a token."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

import mlx_tessl as mt

from .spec import Case, Expected, OpSpec, Refusal


def argmax_oracle(logits: np.ndarray, *, softcap: float | None = None) -> Expected:
    z = logits if softcap is None else np.tanh(logits / softcap)
    index = np.argmax(z, axis=-1)
    return index.astype(np.float64), np.zeros(index.shape)


ARGMAX = OpSpec(
    name="argmax",
    op=mt.argmax,
    twin=mt.reference.argmax,
    oracle=argmax_oracle,
    roundings=lambda _: 0,
    cases=(
        Case("plain", {"logits": (5, 64)}),
        Case("ragged", {"logits": (2, 3, 37)}),
        Case("vocabulary", {"logits": (10007,)}),
        Case("capped", {"logits": (7, 300)}, {"softcap": 30.0}),
        Case("one_column", {"logits": (6, 1)}),
        Case("empty", {"logits": (0, 8)}),
    ),
    refusals=(
        Refusal("scalar", {"logits": ()}, "logits has shape ()"),
        Refusal("no_columns", {"logits": (3, 0)}, "its rows must not be empty"),
        Refusal("int", {"logits": (3, 4)}, "int32", dtypes={"logits": "int32"}),
        Refusal("softcap", {"logits": (3, 4)}, "softcap is 0", {"softcap": 0.0}),
    ),
    growing=("logits",),
    variants=({}, {"softcap": 1e-3}),
    gives_indices=True,
)


def sample_oracle(
    logits: np.ndarray,
    *,
    key: mx.array,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    softcap: float | None = None,
) -> Expected:
    """By sorting, with MLX's own noise of the key."""
    z = logits if softcap is None else softcap * np.tanh(logits / softcap)
    if temperature == 0:
        return argmax_oracle(z)
    z = z / temperature
    least = np.full((*z.shape[:-1], 1), -np.inf)
    if top_k is not None and top_k < z.shape[-1]:
        least = np.sort(z, axis=-1)[..., -top_k, None]
    if top_p is not None:
        descending = -np.sort(-np.where(z >= least, z, -np.inf), axis=-1)
        mass = np.cumsum(np.exp(descending - descending[..., :1]), axis=-1)
        first = np.argmax(mass >= top_p * mass[..., -1:], axis=-1, keepdims=True) if z.size else np.zeros((0, 1), int)
        least = np.maximum(least, np.take_along_axis(descending, first, axis=-1))
    noise = np.array(mx.random.gumbel(logits.shape, mx.float32, key)).astype(np.float64)
    return argmax_oracle(np.where(z >= least, z + noise, -np.inf))


_KEY = {"key": mx.random.key(7)}

SAMPLE = OpSpec(
    name="sample",
    op=mt.sample,
    twin=mt.reference.sample,
    oracle=sample_oracle,
    roundings=lambda _: 0,
    cases=(
        Case("plain", {"logits": (50, 64)}, _KEY),
        Case("cool", {"logits": (2, 9, 37)}, {"temperature": 0.3, **_KEY}),
        Case("greedy", {"logits": (9, 37)}, {"temperature": 0.0, **_KEY}),
        Case("top_k", {"logits": (40, 300)}, {"top_k": 5, **_KEY}),
        Case("top_p", {"logits": (40, 300)}, {"top_p": 0.3, **_KEY}),
        Case("all", {"logits": (40, 1001)}, {"top_k": 50, "top_p": 0.6, "temperature": 0.7, "softcap": 30.0, **_KEY}),
        Case("capped", {"logits": (9, 37)}, {"softcap": 0.5, **_KEY}),
        Case("top_one", {"logits": (9, 37)}, {"top_k": 1, **_KEY}),
        Case("more_than_there_are", {"logits": (9, 37)}, {"top_k": 100, "top_p": 1.0, **_KEY}),
        Case("empty", {"logits": (0, 8)}, {"top_k": 2, **_KEY}),
    ),
    refusals=(
        Refusal("scalar", {"logits": ()}, "logits has shape ()"),
        Refusal("no_columns", {"logits": (3, 0)}, "its rows must not be empty"),
        Refusal("temperature", {"logits": (3, 4)}, "temperature is -1", {"temperature": -1.0}),
        Refusal("top_k", {"logits": (3, 4)}, "top_k is 0", {"top_k": 0}),
        Refusal("top_p", {"logits": (3, 4)}, "top_p is 1.5", {"top_p": 1.5}),
        Refusal("softcap", {"logits": (3, 4)}, "softcap is nan", {"softcap": float("nan")}),
    ),
    growing=(),
    shapeless=False,  # MLX's random numbers need their shape
    variants=({}, {"top_k": 2}, {"top_p": 0.2}, {"temperature": 9.0}, {"softcap": 1e-2}),
    gives_indices=True,
)

SPECS = (
    ARGMAX,
    SAMPLE,
)
