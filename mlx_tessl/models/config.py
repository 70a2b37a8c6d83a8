"""What of a ``config.json`` a model takes, and how it refuses the rest; ``kind`` is the model's name in messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import mlx.core as mx

from ..ops.matmul import Activation

# Names of transformers' activations that a fused product can apply.
ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
}


def check_present(kind: str, config: Mapping[str, Any], names: Iterable[str]) -> None:
    absent = [name for name in names if name not in config]
    if absent:
        raise ValueError(f"[{kind}] the config lacks {', '.join(absent)}")


def check_sizes(kind: str, sizes: Mapping[str, Any]) -> None:
    for name, value in sizes.items():
        if type(value) is not int or value < 1:
            raise ValueError(f"[{kind}] {name} is {value!r}; it must be a positive integer")


def check_choice(kind: str, name: str, value: Any, allowed: Iterable[str]) -> None:
    if value not in allowed:
        raise ValueError(f"[{kind}] {name} is {value!r}; it must be one of {', '.join(allowed)}")


def check_divides(kind: str, name: str, value: int, heads: int, what: str = "attention heads") -> None:
    if value % heads != 0:
        raise ValueError(f"[{kind}] {name} is {value}; it must be divisible by the {heads} {what}")


def refuse(kind: str, config: Mapping[str, Any], names: Iterable[str]) -> None:
    """Refuses a config in which one of ``names`` is set: each asks for what the model does not compute."""
    for name in names:
        if config.get(name):
            raise ValueError(f"[{kind}] {name} is {config[name]!r} in the config; this model does not compute that")


def check_ids(kind: str, groups: Iterable[mx.array], positions: int) -> None:
    for input_ids in groups:
        if input_ids.ndim != 2:
            raise ValueError(f"[{kind}] input_ids has shape {input_ids.shape}; it must be [B, T]")
        if input_ids.shape[1] > positions:
            raise ValueError(
                f"[{kind}] input_ids has {input_ids.shape[1]} tokens a row; the model has {positions} positions"
            )
