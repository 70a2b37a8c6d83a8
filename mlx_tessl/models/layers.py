"""Layers that several models share."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from ..ops import layer_norm, linear
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
