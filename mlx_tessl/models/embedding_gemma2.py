"""EmbeddingGemma 2, its text path: a Gemma encoder whose layers are also fed from the embeddings directly.

The parameters have the names of Hugging Face's ``EmbeddingGemma2TextModel``. In a multimodal checkpoint they stand
under ``language_model.``; the towers beside them are left out. Source: transformers' ``embedding_gemma2``. Shapes:
``B`` rows of ``T`` tokens, ``H`` hidden units, ``P`` units of a layer's own input, ``E`` components of an embedding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from ..ops import geglu, linear, rms_norm
from .checkpoint import Weights
from .config import check_choice, check_divides, check_present, check_sizes, refuse
from .gemma_encoder import (
    MLP,
    Attention,
    AttentionArgs,
    check_activation,
    embed,
    read_layer_types,
    read_thetas,
    refuse_float16,
    strip_prefixes,
)
from .groups import Groups, TextEncoder
from .layers import Linear, RMSNorm

_KIND = "embedding_gemma2"
_TOWERS = ("vision_tower.", "embed_vision.", "audio_tower.", "embed_audio.")


@dataclass
class ModelArgs:
    """What of an EmbeddingGemma 2 ``config.json`` decides the text network; names are the config's.

    A sliding layer sees ``|i - j| <= sliding_window``. ``per_layer_config`` holds in what a layer differs.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    sliding_window: int
    hidden_size_per_layer_input: int
    embedding_dim: int
    rms_norm_eps: float = 1e-6
    layer_types: tuple[str, ...] = ()
    thetas: Mapping[str, float] | None = None
    per_layer_config: Mapping[int, Mapping[str, int]] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> ModelArgs:
        """The arguments in a parsed ``config.json``, or in its ``text_config`` when it is that of a multimodal model.

        Raises:
            ValueError: A size is absent or not a positive integer, or the config asks for what this model does not
                compute.
        """
        refuse(_KIND, config, ("quantization_config",))
        config = config.get("text_config", config)
        sizes = [item.name for item in fields(cls) if item.type == "int"]
        check_present(_KIND, config, sizes)
        refuse(_KIND, config, ("attention_bias", "quantization_config"))
        check_activation(_KIND, config)
        types = read_layer_types(_KIND, config)
        derived: dict[str, Any] = {
            "layer_types": types,
            "thetas": read_thetas(_KIND, config),
            "per_layer_config": _read_layers(config, types),
        }
        args = cls(**{item.name: config[item.name] for item in fields(cls) if item.name in config} | derived)
        check_sizes(_KIND, {name: getattr(args, name) for name in sizes})
        for index in range(args.num_hidden_layers):
            heads = args.attention(index).num_key_value_heads
            check_divides(_KIND, "num_attention_heads", args.num_attention_heads, heads, "key heads")
        return args

    def attention(self, layer: int) -> AttentionArgs:
        assert self.thetas is not None
        layer_type = self.layer_types[layer]
        own = self.per_layer_config.get(layer, {})
        return AttentionArgs(
            hidden_size=self.hidden_size,
            num_heads=self.num_attention_heads,
            num_key_value_heads=own.get("num_key_value_heads", self.num_key_value_heads),
            head_dim=own.get("head_dim", self.head_dim),
            theta=self.thetas[layer_type],
            scale=1.0,
            window=self.sliding_window if layer_type == "sliding_attention" else None,
            norm_eps=self.rms_norm_eps,
            norm_offset=0.0,
            normalize_value=True,
        )


def _read_layers(config: Mapping[str, Any], types: tuple[str, ...]) -> dict[int, dict[str, int]]:
    """``per_layer_config`` by layer; a config without it gives the full layers their width under other names."""
    listed = config.get("per_layer_config")
    if listed is None:
        full = {
            "head_dim": config.get("global_head_dim", 512),
            "num_key_value_heads": config.get("num_global_key_value_heads", 1),
        }
        return {index: full for index, kind in enumerate(types) if kind == "full_attention"}
    for entry in listed.values():
        for name in entry:
            check_choice(_KIND, "a key of per_layer_config", name, ("head_dim", "num_key_value_heads"))
        check_sizes(_KIND, entry)
    return {int(index): dict(entry) for index, entry in listed.items()}


class PerLayerInputs(nn.Module):
    """What each layer gets of the embeddings besides the residual stream: ``rms_norm(H^-1/2 W x)``.

    It is computed layer by layer, so that ``[N, layers * P]`` is never held.
    """

    def __init__(self, args: ModelArgs):
        super().__init__()
        self.size = args.hidden_size_per_layer_input
        # rms_norm(s x, eps) = rms_norm(x, eps / s^2), here with s = H^-1/2.
        self.eps = args.rms_norm_eps * args.hidden_size
        self.per_layer_model_projection = Linear(args.hidden_size, args.num_hidden_layers * self.size, bias=False)
        self.per_layer_projection_norm = RMSNorm(self.size, args.rms_norm_eps)

    def __call__(self, embeddings: mx.array, layer: int) -> mx.array:
        """``[N, P]`` for a layer of ``embeddings [N, H]``."""
        rows = slice(layer * self.size, (layer + 1) * self.size)
        projected = linear(embeddings, self.per_layer_model_projection.weight[rows])
        return rms_norm(projected, self.per_layer_projection_norm.weight, self.eps)


class PerLayerBlock(nn.Module):
    """A layer's third residual branch: ``norm(W2 (gelu_tanh(W1 x) y))`` of the layer's own input ``y``."""

    def __init__(self, args: ModelArgs):
        super().__init__()
        self.per_layer_input_gate = Linear(args.hidden_size, args.hidden_size_per_layer_input, bias=False)
        self.per_layer_projection = Linear(args.hidden_size_per_layer_input, args.hidden_size, bias=False)
        self.post_per_layer_input_norm = RMSNorm(args.hidden_size, args.rms_norm_eps)

    def __call__(self, x: mx.array, own: mx.array) -> mx.array:
        gated = geglu(self.per_layer_input_gate(x), own)
        return self.post_per_layer_input_norm(self.per_layer_projection(gated))


class Layer(nn.Module):
    def __init__(self, args: ModelArgs, index: int):
        super().__init__()
        self.self_attn = Attention(args.attention(index))
        self.mlp = MLP(args.hidden_size, args.intermediate_size)
        self.input_layernorm = RMSNorm(args.hidden_size, args.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(args.hidden_size, args.rms_norm_eps)
        self.pre_feedforward_layernorm = RMSNorm(args.hidden_size, args.rms_norm_eps)
        self.post_feedforward_layernorm = RMSNorm(args.hidden_size, args.rms_norm_eps)
        self.ple_block = PerLayerBlock(args)
        self.layer_scalar = mx.ones((1,))
        self.freeze(recurse=False, keys="layer_scalar")  # saved with the weights, but no parameter of the reference

    def __call__(self, x: mx.array, own: mx.array, groups: Groups) -> mx.array:
        attended = self.self_attn(self.input_layernorm(x), groups)
        normed, x = self.pre_feedforward_layernorm.add(self.post_attention_layernorm(attended), x)
        x = x + self.post_feedforward_layernorm(self.mlp(normed))
        return (x + self.ple_block(x, own)) * self.layer_scalar


class Model(TextEncoder):
    """The text encoder, Hugging Face's ``EmbeddingGemma2TextModel``.

    A call gives the projected hidden state, whose mean over a row's tokens is its embedding.
    """

    model_type = _KIND

    def __init__(self, args: ModelArgs):
        super().__init__()
        self.args = args
        self.embed_tokens = nn.Embedding(args.vocab_size, args.hidden_size)
        self.ple = PerLayerInputs(args)
        self.layers = [Layer(args, index) for index in range(args.num_hidden_layers)]
        self.norm = RMSNorm(args.hidden_size, args.rms_norm_eps)
        self.embedding_projection = Linear(args.hidden_size, args.embedding_dim, bias=False)

    def hidden(self, groups: Groups) -> mx.array:
        embeddings = x = embed(self.embed_tokens, groups.input_ids)
        for index, layer in enumerate(self.layers):
            x = layer(x, self.ple(embeddings, index), groups)
        return self.embedding_projection(self.norm(x))

    def sanitize(self, weights: Mapping[str, mx.array]) -> Weights:
        """A checkpoint's text tensors under this model's names; the towers of other modalities are dropped.

        Raises:
            ValueError: They are float16.
        """
        named = strip_prefixes(weights, ("model.", "language_model."))
        text = {name: tensor for name, tensor in named.items() if not name.startswith(_TOWERS)}
        refuse_float16(_KIND, text)
        return text

    def fuse(self) -> None:
        """Makes the projections of every layer that share an input one product; called once the weights are loaded."""
        for layer in self.layers:
            layer.self_attn.fuse()
            layer.mlp.fuse()
