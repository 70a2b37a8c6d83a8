"""Token embeddings to one embedding a row: the modules that follow the transformer in sentence-transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from ..models.checkpoint import assign, read_json, read_weights
from ..models.layers import Linear
from ..ops import l2_normalize, segment_mean

_MODES = ("cls", "max", "mean")

# Keys of 1_Pooling/config.json before sentence-transformers 5, in the order in which it concatenates.
_LEGACY_KEYS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True)
class Pooling:
    """One embedding a row; several modes are concatenated.

    ``include_prompt`` is whether the tokens of a prompt count.
    """

    modes: tuple[str, ...] = ("mean",)
    include_prompt: bool = True

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Pooling:
        """From ``1_Pooling/config.json``, of old or new form.

        Raises:
            ValueError: It asks for a mode other than mean, cls and max.
        """
        modes = config.get("pooling_mode")
        if modes is None:
            modes = [mode for key, mode in _LEGACY_KEYS.items() if config.get(key)] or "mean"
        modes = (modes,) if isinstance(modes, str) else tuple(modes)
        unknown = [mode for mode in modes if mode not in _MODES]
        if unknown:
            raise ValueError(f"[pooling] pooling mode is {', '.join(unknown)}; it must be one of {', '.join(_MODES)}")
        return cls(modes, bool(config.get("include_prompt", True)))

    def __call__(self, hidden: mx.array, lengths: mx.array | None, prompt_tokens: int = 0) -> mx.array:
        """``[B, T, H]`` to float32 ``[B, H * len(modes)]``.

        Args:
            hidden: ``[B, T, H]``.
            lengths: ``[B]``, tokens that count; ``None`` for all.
            prompt_tokens: Tokens at the start of each row that belong to the prompt, the first special one included.

        A row without a token that counts is zeros.
        """
        if lengths is None:
            lengths = mx.full((hidden.shape[0],), hidden.shape[1], mx.int32)
        first = 0 if self.include_prompt else prompt_tokens
        hidden = hidden.astype(mx.float32)
        pools = {"cls": _first, "max": _max, "mean": _mean}
        parts = [pools[mode](hidden, lengths, first) for mode in self.modes]
        return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=-1)


def _first(hidden: mx.array, lengths: mx.array, first: int) -> mx.array:
    if first >= hidden.shape[1]:
        return mx.zeros_like(hidden[:, 0])
    return mx.where((lengths > first)[:, None], hidden[:, first], 0)


def _max(hidden: mx.array, lengths: mx.array, first: int) -> mx.array:
    positions = mx.arange(hidden.shape[1])
    counts = ((positions >= first) & (positions < lengths[:, None]))[..., None]
    largest = mx.where(counts, hidden, mx.finfo(mx.float32).min).max(axis=1)
    return mx.where((lengths > first)[:, None], largest, 0)


def _mean(hidden: mx.array, lengths: mx.array, first: int) -> mx.array:
    rows, tokens, _ = hidden.shape
    return segment_mean(hidden.flatten(0, 1), mx.arange(rows) * tokens + first, lengths - first)


def normalize(embeddings: mx.array) -> mx.array:
    """``[..., D]`` at unit Euclidean length; zeros stay zeros."""
    return l2_normalize(embeddings, 1e-12)


_DENSE_ACTIVATIONS: dict[str, Callable[[mx.array], mx.array]] = {
    "Identity": lambda x: x,
    "Tanh": mx.tanh,
    "ReLU": lambda x: mx.maximum(x, 0),
}


class Dense:
    """A linear layer on embeddings, with an activation."""

    def __init__(self, folder: Path):
        config = read_json(folder / "config.json")
        name = str(config.get("activation_function", "torch.nn.Tanh")).rsplit(".", 1)[-1]
        if name not in _DENSE_ACTIVATIONS:
            raise ValueError(f"[dense] activation is {name}; it must be one of {', '.join(_DENSE_ACTIVATIONS)}")
        if config.get("use_residual"):
            raise ValueError("[dense] use_residual is true in the config; this module does not compute that")
        self._activation = _DENSE_ACTIVATIONS[name]
        self._linear = Linear(config["in_features"], config["out_features"], bias=bool(config.get("bias", True)))
        weights = {key.removeprefix("linear."): tensor for key, tensor in read_weights(folder).items()}
        assign(self._linear, weights)

    def __call__(self, embeddings: mx.array) -> mx.array:
        return self._activation(self._linear(embeddings))
