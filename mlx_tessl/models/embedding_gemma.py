"""EmbeddingGemma 300m: Gemma 3's text model looking both ways (Vera et al. 2025, arXiv:2509.20354).

The parameters have the names of Hugging Face's ``Gemma3TextModel``. Pooling and the two Dense layers of the released
checkpoint are modules beside it, which :class:`mlx_tessl.encoders.SentenceEncoder` reads. Shapes: ``B`` rows of ``T``
tokens, ``H`` hidden units.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from .checkpoint import Weights
from .config import check_divides, check_present, check_sizes, refuse
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
from .layers import RMSNorm

_KIND = "embedding_gemma"
_UNSUPPORTED = ("attention_bias", "attn_logit_softcapping", "quantization_config")


@dataclass
class ModelArgs:
    """What of a ``gemma3_text`` ``config.json`` decides the network; names are the config's.

    A sliding layer sees ``|i - j| <= sliding_window // 2``: the config counts both sides.
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
    query_pre_attn_scalar: int = 256
    rms_norm_eps: float = 1e-6
    layer_types: tuple[str, ...] = ()
    thetas: Mapping[str, float] | None = None

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> ModelArgs:
        """The arguments in a parsed ``config.json``.

        Raises:
            ValueError: A size is absent or not a positive integer, the model is a causal Gemma 3, or the config asks
                for what this model does not compute.
        """
        sizes = [field.name for field in fields(cls) if field.type == "int"]
        check_present(_KIND, config, [name for name in sizes if name != "query_pre_attn_scalar"])
        if config.get("use_bidirectional_attention") is not True:
            raise ValueError(
                f"[{_KIND}] use_bidirectional_attention is {config.get('use_bidirectional_attention')!r}; only the "
                "encoder, for which it is true, is computed here"
            )
        refuse(_KIND, config, _UNSUPPORTED)
        check_activation(_KIND, config)
        derived = {"layer_types": read_layer_types(_KIND, config), "thetas": read_thetas(_KIND, config)}
        args = cls(**{field.name: config[field.name] for field in fields(cls) if field.name in config} | derived)
        check_sizes(_KIND, {name: getattr(args, name) for name in sizes})
        check_divides(_KIND, "num_attention_heads", args.num_attention_heads, args.num_key_value_heads, "key heads")
        return args

    def attention(self, layer: int) -> AttentionArgs:
        assert self.thetas is not None
        layer_type = self.layer_types[layer]
        return AttentionArgs(
            hidden_size=self.hidden_size,
            num_heads=self.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            theta=self.thetas[layer_type],
            scale=self.query_pre_attn_scalar**-0.5,
            window=self.sliding_window // 2 if layer_type == "sliding_attention" else None,
            norm_eps=self.rms_norm_eps,
            norm_offset=1.0,
            normalize_value=False,
        )


class Layer(nn.Module):
    def __init__(self, args: ModelArgs, index: int):
        super().__init__()
        self.self_attn = Attention(args.attention(index))
        self.mlp = MLP(args.hidden_size, args.intermediate_size)
        self.input_layernorm = _norm(args)
        self.post_attention_layernorm = _norm(args)
        self.pre_feedforward_layernorm = _norm(args)
        self.post_feedforward_layernorm = _norm(args)

    def __call__(self, x: mx.array, groups: Groups) -> mx.array:
        attended = self.self_attn(self.input_layernorm(x), groups)
        normed, x = self.pre_feedforward_layernorm.add(self.post_attention_layernorm(attended), x)
        return x + self.post_feedforward_layernorm(self.mlp(normed))


def _norm(args: ModelArgs) -> RMSNorm:
    return RMSNorm(args.hidden_size, args.rms_norm_eps, weight_offset=1.0)


class Model(TextEncoder):
    """The encoder, Hugging Face's ``Gemma3TextModel`` with ``use_bidirectional_attention``.

    A call gives the last hidden state.
    """

    model_type = _KIND

    def __init__(self, args: ModelArgs):
        super().__init__()
        self.args = args
        self.embed_tokens = nn.Embedding(args.vocab_size, args.hidden_size)
        self.layers = [Layer(args, index) for index in range(args.num_hidden_layers)]
        self.norm = _norm(args)

    def hidden(self, groups: Groups) -> mx.array:
        x = embed(self.embed_tokens, groups.input_ids)
        for layer in self.layers:
            x = layer(x, groups)
        return self.norm(x)

    def sanitize(self, weights: Mapping[str, mx.array]) -> Weights:
        """A checkpoint's tensors under this model's names.

        Raises:
            ValueError: They are float16.
        """
        refuse_float16(_KIND, weights)
        named = strip_prefixes(weights, ("model.", "language_model."))
        return {name: tensor for name, tensor in named.items() if name != "lm_head.weight"}

    def fuse(self) -> None:
        """Makes the projections of every layer that share an input one product; called once the weights are loaded."""
        for layer in self.layers:
            layer.self_attn.fuse()
            layer.mlp.fuse()
