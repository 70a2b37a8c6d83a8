"""Layers that several models share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx
import mlx.nn as nn

from ..ops import layer_norm, linear, rms_norm
from ..ops.matmul import Activation


class Linear(nn.Linear):
    """``nn.Linear`` through :func:`mlx_tessl.linear`: bias, activation and residual are part of the product."""

    def __call__(
        self, x: mx.array, *, activation: Activation | None = None, residual: mx.array | None = None
    ) -> mx.array:
        return linear(x, self.weight, self.get("bias"), activation=activation, residual=residual)


class LayerNorm(nn.LayerNorm):
    """``nn.LayerNorm`` through :func:`mlx_tessl.layer_norm`."""

    def __call__(self, x: mx.array) -> mx.array:
        return layer_norm(x, self.weight, self.bias, self.eps)


class RMSNorm(nn.Module):
    """:func:`mlx_tessl.rms_norm` with a weight; ``weight_offset`` is 1 where checkpoints store ``weight - 1``."""

    def __init__(self, size: int, eps: float, weight_offset: float = 0.0):
        super().__init__()
        self.weight = mx.full((size,), 1.0 - weight_offset)
        self.eps = eps
        self.weight_offset = weight_offset

    def __call__(self, x: mx.array) -> mx.array:
        return rms_norm(x, self.weight, self.eps, weight_offset=self.weight_offset)

    def add(self, x: mx.array, residual: mx.array) -> tuple[mx.array, mx.array]:
        """The norm of ``x + residual``, and that sum."""
        return rms_norm(x, self.weight, self.eps, residual=residual, weight_offset=self.weight_offset)


class _Stacked(NamedTuple):
    """Weights and biases of several layers as one, and the parameters they were made of."""

    weight: mx.array
    bias: mx.array | None
    sources: tuple[mx.array, ...]


class Joined:
    """Linear layers of the same input as one product, for as long as their parameters are those it was made of.

    Parameters that are replaced later, by an optimizer, an adapter or under ``mx.grad``, are used one by one.
    """

    def __init__(self) -> None:
        self._stacked: _Stacked | None = None

    def join(self, parts: Sequence[Linear]) -> None:
        """Stacks ``parts``, whose parameters become views of the stack. They have a bias all, or none."""
        splits = _ends([part.weight.shape[0] for part in parts])
        weight = mx.concatenate([part.weight for part in parts])
        for part, rows in zip(parts, mx.split(weight, splits), strict=True):
            part.weight = rows
        bias = None
        if "bias" in parts[0]:
            bias = mx.concatenate([part.bias for part in parts])
            for part, rows in zip(parts, mx.split(bias, splits), strict=True):
                part.bias = rows
        self._stacked = _Stacked(weight, bias, _parameters(parts))

    def __call__(self, x: mx.array, parts: Sequence[Linear]) -> list[mx.array]:
        """``part(x)`` of each part."""
        stacked = self.valid(parts)
        if stacked is None:
            return [part(x) for part in parts]
        return list(mx.split(linear(x, stacked.weight, stacked.bias), _ends([p.weight.shape[0] for p in parts]), -1))

    def valid(self, parts: Sequence[Linear]) -> _Stacked | None:
        """The stack, when it still is that of ``parts``."""
        stacked = self._stacked
        if stacked is None or not all(type(part) is Linear for part in parts):
            return None
        same = all(a is b for a, b in zip(stacked.sources, _parameters(parts), strict=True))
        return stacked if same else None


def _parameters(parts: Sequence[Linear]) -> tuple[mx.array, ...]:
    return tuple(part[name] for part in parts for name in ("weight", "bias") if name in part)


def _ends(sizes: Sequence[int]) -> list[int]:
    """Where each size but the last ends, for ``mx.split``."""
    return [sum(sizes[:i]) for i in range(1, len(sizes))]


def split_heads(x: mx.array, heads: int) -> mx.array:
    """``[B, T, heads * D]`` as ``[B, heads, T, D]``."""
    return mx.unflatten(x, -1, (heads, -1)).swapaxes(1, 2)


def merge_heads(x: mx.array) -> mx.array:
    """``[B, heads, T, D]`` as ``[B, T, heads * D]``."""
    return x.swapaxes(1, 2).flatten(-2)
