"""The readable twin of each op, in stock MLX ops: what the op means.

Twins have the op's signature. They are the oracle in tests, what runs on a GPU that is not Metal, and what
``mx.export_function`` can serialize (see :func:`mlx_tessl.use_reference`). ``precision`` and ``batch_invariant`` choose
between ways to compute the same thing, and are ignored here.
"""

from .activations import activate
from .attention import attention
from .gates import geglu, sigmoid_gate, swiglu
from .linear import linear
from .matmul import matmul
from .norms import gated_rms_norm, layer_norm, rms_norm
from .quantized_embedding import quantized_embedding
from .quantized_matmul import quantized_matmul

__all__ = [
    "activate",
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
