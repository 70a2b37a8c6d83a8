"""The readable twin of each op, in stock MLX ops: what the op means.

Twins have the op's signature. They are the oracle in tests, what runs on a GPU that is not Metal, and what
``mx.export_function`` can serialize (see :func:`mlx_tessl.use_reference`). ``precision`` and ``batch_invariant`` choose
between ways to compute the same thing, and are ignored here.
"""

from .activations import activate
from .attention import attention
from .causal_conv1d import causal_conv1d
from .gated_delta import gated_delta
from .gates import geglu, sigmoid_gate, swiglu
from .int8_matmul import int8_matmul
from .kv_store import kv_store
from .linear import linear
from .matmul import matmul
from .norms import gated_rms_norm, layer_norm, rms_norm
from .quantized_embedding import quantized_embedding
from .quantized_matmul import quantized_matmul
from .reductions import l2_normalize, logsumexp, row_max, row_sum, softmax
from .rope import qk_norm_rope, rope, rope_inv_freq
from .sampling import argmax, sample
from .score_rows import score_rows
from .segment_mean import segment_mean
from .sparse_max_pool import sparse_max_pool

__all__ = [
    "activate",
    "argmax",
    "attention",
    "causal_conv1d",
    "gated_delta",
    "gated_rms_norm",
    "geglu",
    "int8_matmul",
    "kv_store",
    "l2_normalize",
    "layer_norm",
    "linear",
    "logsumexp",
    "matmul",
    "qk_norm_rope",
    "quantized_embedding",
    "quantized_matmul",
    "rms_norm",
    "rope",
    "rope_inv_freq",
    "row_max",
    "row_sum",
    "sample",
    "score_rows",
    "segment_mean",
    "sigmoid_gate",
    "softmax",
    "sparse_max_pool",
    "swiglu",
]
