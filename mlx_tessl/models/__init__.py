"""Model definitions on the ops of this package, loaded from Hugging Face checkpoint folders."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Literal

import mlx.core as mx
import mlx.nn as nn

from .checkpoint import assign, read_config, read_weights

__all__ = ["load_model"]

# model_type of a config.json, and the module here that defines its `ModelArgs`, `Model` and `MaskedLM`.
_MODULES = {"bert": "bert"}


def load_model(folder: str | Path, *, head: Literal["masked_lm"] | None = None) -> nn.Module:
    """The model of a checkpoint folder, with its weights, in evaluation mode.

    Args:
        folder: Holds ``config.json`` and ``model.safetensors`` (or shards and their index).
        head: ``None`` for the encoder that returns hidden states, ``"masked_lm"`` for the one with a vocabulary head.

    Returns:
        The module; its weights keep the checkpoint's dtype.

    Raises:
        ValueError: The folder is not such a checkpoint, its model is of a kind not known here or not computed in full,
            or tensors are missing, unknown or of another shape (all are listed).
    """
    folder = Path(folder)
    config = read_config(folder)
    model_type = config.get("model_type")
    if model_type not in _MODULES:
        raise ValueError(
            f"[load_model] model_type of {folder} is {model_type!r}; it must be one of {', '.join(_MODULES)}"
        )
    module = import_module(f".{_MODULES[model_type]}", __name__)
    kind = module.Model if head is None else module.MaskedLM
    model: nn.Module = kind(module.ModelArgs.from_dict(config))
    assign(model, model.sanitize(read_weights(folder)))
    model.fuse()
    model.eval()
    mx.eval(model.parameters())
    return model
