"""TensorOps matmul, flash attention and quantized GEMM as MLX primitives, with the models that use them."""

from importlib import import_module
from types import ModuleType

from . import _build_info, _load, reference  # noqa: F401  (mlx and the extension are loaded, or refused, before all else)
from ._dispatch import use_reference
from ._trace import trace
from .backends import backend_info, build_info, kernels_path
from .emulation import emulate
from .ops import (
    argmax,
    attention,
    causal_conv1d,
    gated_delta,
    gated_rms_norm,
    geglu,
    int8_matmul,
    kv_store,
    l2_normalize,
    layer_norm,
    linear,
    logsumexp,
    matmul,
    qk_norm_rope,
    quantized_embedding,
    quantized_matmul,
    rms_norm,
    rope,
    rope_inv_freq,
    row_max,
    row_sum,
    sample,
    score_rows,
    segment_mean,
    sigmoid_gate,
    softmax,
    sparse_max_pool,
    swiglu,
)

__version__ = _build_info.VERSION

__all__ = [
    "__version__",
    "argmax",
    "attention",
    "backend_info",
    "build_info",
    "causal_conv1d",
    "emulate",
    "gated_delta",
    "gated_rms_norm",
    "geglu",
    "int8_matmul",
    "kernels_path",
    "kv_store",
    "l2_normalize",
    "layer_norm",
    "linear",
    "logsumexp",
    "matmul",
    "qk_norm_rope",
    "quantized_embedding",
    "quantized_matmul",
    "reference",
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
    "trace",
    "use_reference",
]

_LAZY = ("encoders", "lm", "models")  # they bring tokenizers along, which the ops do without


def __getattr__(name: str) -> ModuleType:
    if name in _LAZY:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
