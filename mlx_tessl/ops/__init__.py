"""The ops of this package on ``mlx.core.array``; each has a twin of the same signature in ``mlx_tessl.reference``."""

from .attention import attention
from .gates import geglu, sigmoid_gate, swiglu
from .linear import linear
from .matmul import matmul
from .norms import gated_rms_norm, layer_norm, rms_norm
from .quantized_embedding import quantized_embedding
from .quantized_matmul import quantized_matmul

__all__ = [
    "attention",
    "gated_rms_norm",
    "geglu",
    "layer_norm",
    "linear",
    "matmul",
    "quantized_embedding",
    "quantized_matmul",
    "rms_norm",
    "sigmoid_gate",
    "swiglu",
]
