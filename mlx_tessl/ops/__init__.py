"""The ops of this package on ``mlx.core.array``; each has a twin of the same signature in ``mlx_tessl.reference``."""

from .attention import attention
from .linear import linear
from .matmul import matmul
from .quantized_embedding import quantized_embedding
from .quantized_matmul import quantized_matmul

__all__ = ["attention", "linear", "matmul", "quantized_embedding", "quantized_matmul"]
