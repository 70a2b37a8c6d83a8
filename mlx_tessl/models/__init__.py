"""Model definitions on the ops of this package, loaded from Hugging Face checkpoint folders."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Literal

import mlx.core as mx
import mlx.nn as nn

from .checkpoint import assign, cast, read_config, read_weights

__all__ = ["load_model"]

# model_type of a config.json, and the module here that defines its `ModelArgs`, `Model` and, if it has one, `MaskedLM`.
_MODULES = {
    "bert": "bert",
    "distilbert": "distilbert",
    "embedding_gemma2": "embedding_gemma2",
    "embedding_gemma2_text": "embedding_gemma2",
    "gemma3_text": "embedding_gemma",
}


def load_model(
    folder: str | Path, *, head: Literal["masked_lm"] | None = None, dtype: mx.Dtype | None = None
) -> nn.Module:
    """The model of a checkpoint folder, with its weights, in evaluation mode.

    Args:
        folder: Holds ``config.json`` and ``model.safetensors`` (or shards and their index).
        head: ``None`` for the encoder that returns hidden states, ``"masked_lm"`` for the one with a vocabulary head.
        dtype: What floating-point weights are converted to; ``None`` keeps the checkpoint's.

    Returns:
        The module.

    Raises:
        ValueError: The folder is not such a checkpoint, its model is of a kind not known here or not computed in full,
            it has no such head, or tensors are missing, unknown or of another shape (all are listed).
    """
    folder = Path(folder)
    config = read_config(folder)
    model_type = config.get("model_type")
    if model_type not in _MODULES:
        raise ValueError(
            f"[load_model] model_type of {folder} is {model_type!r}; it must be one of {', '.join(_MODULES)}"
        )
    module = import_module(f".{_MODULES[model_type]}", __name__)
    if head is not None and not hasattr(module, "MaskedLM"):
        raise ValueError(f"[load_model] model_type of {folder} is {model_type!r}, which has no masked-LM head")
    kind = module.Model if head is None else module.MaskedLM
    model: nn.Module = kind(module.ModelArgs.from_dict(config))
    assign(model, model.sanitize(cast(read_weights(folder), dtype)))
    model.fuse()
    model.eval()
    mx.eval(model.parameters())
    return model
