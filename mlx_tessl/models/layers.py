"""Layers that several models share."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from operator import is_
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from ..ops import layer_norm, linear, quantized_embedding, quantized_matmul, rms_norm
from ..ops.matmul import Activation


class Linear(nn.Linear):
    """``nn.Linear`` through :func:`mlx_tessl.linear`: bias, activation and residual are part of the product."""

    def __call__(
        self, x: mx.array, *, activation: Activation | None = None, residual: mx.array | None = None
    ) -> mx.array:
        return linear(x, self.weight, self.get("bias"), activation=activation, residual=residual)

    def rows(self, ids: mx.array) -> mx.array:
        """Rows of the matrix."""
        return self.weight[ids]

    def to_quantized(
        self,
        group_size: int | None = None,
        bits: int | None = None,
        mode: str = "affine",
        quantize_input: bool = False,
    ) -> nn.Module:
        if quantize_input:
            return super().to_quantized(group_size, bits, mode, quantize_input)
        return QuantizedLinear.from_linear(self, group_size, bits, mode)  # type: ignore[arg-type]


class QuantizedLinear(nn.QuantizedLinear):
    """``nn.QuantizedLinear`` through :func:`mlx_tessl.quantized_matmul`: summed in float32 on every device."""

    def __call__(
        self, x: mx.array, *, activation: Activation | None = None, residual: mx.array | None = None
    ) -> mx.array:
        packed, format = _packed(self)
        y = quantized_matmul(x, *packed, **format, bias=self.get("bias"), activation=activation)
        return y if residual is None else y + residual

    def rows(self, ids: mx.array) -> mx.array:
        """Rows of the matrix, decoded."""
        packed, format = _packed(self)
        return quantized_embedding(ids, *packed, **format)


class Embedding(nn.Embedding):
    """``nn.Embedding`` whose transpose, a tied head, is a product of ours."""

    def as_linear(self, x: mx.array) -> mx.array:
        return linear(x, self.weight)

    def to_quantized(
        self,
        group_size: int | None = None,
        bits: int | None = None,
        mode: str = "affine",
        quantize_input: bool = False,
    ) -> nn.Module:
        if quantize_input:
            raise ValueError("[Embedding] an embedding has no input to quantize")
        return QuantizedEmbedding.from_embedding(self, group_size, bits, mode)  # type: ignore[arg-type]


class QuantizedEmbedding(nn.QuantizedEmbedding):
    """``nn.QuantizedEmbedding`` through :func:`mlx_tessl.quantized_embedding` and ``quantized_matmul``."""

    def __call__(self, ids: mx.array) -> mx.array:
        packed, format = _packed(self)
        return quantized_embedding(ids, *packed, **format)

    def as_linear(self, x: mx.array) -> mx.array:
        packed, format = _packed(self)
        return quantized_matmul(x, *packed, **format)


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


class Joined:
    """Linear layers of the same input as one product, for as long as their parameters are those it was made of.

    Parameters that are replaced later, by an optimizer, an adapter or under ``mx.grad``, are used one by one.
    """

    def __init__(self) -> None:
        self._stack: Linear | QuantizedLinear | None = None
        self._sources: list[mx.array | None] = []
        self._splits: list[int] = []

    def join(self, parts: Sequence[nn.Module]) -> None:
        """Stacks ``parts``, whose parameters become views of the stack. Those of unlike kinds are left apart."""
        self._stack = None
        kinds = {_kind(part) for part in parts}
        if len(kinds) > 1 or None in kinds:
            return
        rows = [part.weight.shape[0] for part in parts]
        self._splits = [sum(rows[:i]) for i in range(1, len(rows))]
        stack: Any = copy(parts[0])
        for name in _parameter_names(stack):
            stack[name] = mx.concatenate([part[name] for part in parts])
            for part, view in zip(parts, mx.split(stack[name], self._splits), strict=True):
                part[name] = view
        self._stack, self._sources = stack, _parameters(parts)

    def __call__(self, x: mx.array, parts: Sequence[nn.Module]) -> list[mx.array]:
        """``part(x)`` of each part."""
        stack = self.valid(parts)
        if stack is None:
            return [part(x) for part in parts]
        return list(mx.split(stack(x), self._splits, -1))

    def valid(self, parts: Sequence[nn.Module]) -> Linear | QuantizedLinear | None:
        """The stack, when it still is that of ``parts``."""
        stack = self._stack
        if stack is None or not all([type(part) is type(stack) for part in parts]):
            return None
        return stack if all(map(is_, self._sources, _parameters(parts))) else None


def add_linear(layer: nn.Module, x: mx.array, residual: mx.array) -> mx.array:
    """``layer(x) + residual``, in one launch where the layer can: an adapter around it cannot."""
    if isinstance(layer, Linear | QuantizedLinear):
        return layer(x, residual=residual)
    return layer(x) + residual


def _packed(layer: nn.Module) -> tuple[tuple[mx.array, mx.array, mx.array | None], dict[str, Any]]:
    """Packed weights with their scales and biases, and the keywords that say how they are packed."""
    arrays = layer.weight, layer.scales, layer.get("biases")
    return arrays, {"group_size": layer.group_size, "bits": layer.bits, "mode": layer.mode}


def _kind(part: nn.Module) -> tuple[object, ...] | None:
    """Layers of one kind can be stacked; None is a layer that cannot."""
    dtypes = tuple(part[name].dtype for name in _parameter_names(part))
    if type(part) is Linear:
        return (Linear, _parameter_names(part), dtypes)
    if type(part) is QuantizedLinear:
        return (QuantizedLinear, _parameter_names(part), dtypes, part.group_size, part.bits, part.mode)
    return None


_PARAMETERS = ("weight", "scales", "biases", "bias")


def _parameter_names(part: nn.Module) -> tuple[str, ...]:
    return tuple(name for name in _PARAMETERS if part.get(name) is not None)


def _parameters(parts: Sequence[nn.Module]) -> list[mx.array | None]:
    return [part.get(name) for part in parts for name in _PARAMETERS]


def split_heads(x: mx.array, heads: int) -> mx.array:
    """``[B, T, heads * D]`` as ``[B, heads, T, D]``."""
    return mx.unflatten(x, -1, (heads, -1)).swapaxes(1, 2)
