"""BERT, dense and masked-LM (Devlin et al. 2018, arXiv:1810.04805).

The parameters have the names of Hugging Face's ``BertModel`` and ``BertForMaskedLM``. Shapes: ``B`` rows of ``T``
tokens, ``H`` hidden units, ``V`` words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from ..ops.matmul import Activation
from .checkpoint import Weights
from .config import ACTIVATIONS, check_choice, check_divides, check_present, check_sizes, refuse
from .groups import Groups, TextEncoder, split_heads
from .layers import Joined, LayerNorm, Linear
from .vocabulary_head import VocabularyHead

# Tensors of a checkpoint that no output here depends on: the next-sentence heads, and buffers once saved by mistake.
_IGNORED = ("pooler.", "cls.seq_relationship.", "embeddings.position_ids", "embeddings.token_type_ids")


@dataclass
class ModelArgs:
    """What of a BERT ``config.json`` decides the network; names are the config's."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    type_vocab_size: int = 2
    hidden_act: str = "gelu"
    layer_norm_eps: float = 1e-12
    tie_word_embeddings: bool = True

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> ModelArgs:
        """The arguments in a parsed ``config.json``.

        Raises:
            ValueError: A size is absent or not a positive integer, or the config asks for what this model does not
                compute (relative positions, a decoder, cross-attention, pruned heads, another activation).
        """
        _refuse_unsupported(config)
        args = cls(**{field.name: config[field.name] for field in fields(cls) if field.name in config})
        args._check()
        return args

    @property
    def activation(self) -> Activation:
        return ACTIVATIONS[self.hidden_act]

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    def _check(self) -> None:
        check_sizes("bert", {field.name: getattr(self, field.name) for field in fields(self) if field.type == "int"})
        check_choice("bert", "hidden_act", self.hidden_act, ACTIVATIONS)
        check_divides("bert", "hidden_size", self.hidden_size, self.num_attention_heads)


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    sizes = [field.name for field in fields(ModelArgs) if field.type == "int" and field.name != "type_vocab_size"]
    check_present("bert", config, sizes)
    check_choice("bert", "model_type", config.get("model_type", "bert"), ["bert"])
    positions = config.get("position_embedding_type", "absolute")
    if positions != "absolute":
        raise ValueError(f"[bert] position_embedding_type is {positions!r}; only 'absolute' is computed")
    refuse("bert", config, ("is_decoder", "add_cross_attention", "pruned_heads", "quantization_config"))


class Embeddings(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.word_embeddings = nn.Embedding(args.vocab_size, args.hidden_size)
        self.position_embeddings = nn.Embedding(args.max_position_embeddings, args.hidden_size)
        self.token_type_embeddings = nn.Embedding(args.type_vocab_size, args.hidden_size)
        self.LayerNorm = LayerNorm(args.hidden_size, args.layer_norm_eps)

    def __call__(self, groups: Groups, token_type_ids: mx.array | None) -> mx.array:
        all_types = self.token_type_embeddings.weight
        types = all_types[0] if token_type_ids is None else all_types[token_type_ids.flatten()]
        positions = self.position_embeddings(groups.positions)
        return self.LayerNorm(self.word_embeddings(groups.input_ids) + (positions + types))


class SelfAttention(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.num_heads = args.num_attention_heads
        self.scale = args.head_dim**-0.5
        self.query = Linear(args.hidden_size, args.hidden_size)
        self.key = Linear(args.hidden_size, args.hidden_size)
        self.value = Linear(args.hidden_size, args.hidden_size)
        self._joined = Joined()

    @property
    def projections(self) -> tuple[Linear, Linear, Linear]:
        return self.query, self.key, self.value

    def fuse(self) -> None:
        """Makes the three projections one product from now on."""
        self._joined.join(self.projections)

    def __call__(self, x: mx.array, groups: Groups) -> mx.array:
        query, key, value = (split_heads(part, self.num_heads) for part in self._joined(x, self.projections))
        return groups.attend(query, key, value, scale=self.scale)


class ResidualOutput(nn.Module):
    """``LayerNorm(dense(x) + residual)``, which closes both halves of a layer."""

    def __init__(self, input_size: int, args: ModelArgs):
        super().__init__()
        self.dense = Linear(input_size, args.hidden_size)
        self.LayerNorm = LayerNorm(args.hidden_size, args.layer_norm_eps)

    def __call__(self, x: mx.array, residual: mx.array) -> mx.array:
        return self.LayerNorm(self.dense(x, residual=residual))


class Attention(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.self = SelfAttention(args)
        self.output = ResidualOutput(args.hidden_size, args)

    def __call__(self, x: mx.array, groups: Groups) -> mx.array:
        return self.output(self.self(x, groups), x)


class Intermediate(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.activation = args.activation
        self.dense = Linear(args.hidden_size, args.intermediate_size)

    def __call__(self, x: mx.array) -> mx.array:
        return self.dense(x, activation=self.activation)


class Layer(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.attention = Attention(args)
        self.intermediate = Intermediate(args)
        self.output = ResidualOutput(args.intermediate_size, args)

    def __call__(self, x: mx.array, groups: Groups) -> mx.array:
        x = self.attention(x, groups)
        return self.output(self.intermediate(x), x)


class Encoder(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.layer = [Layer(args) for _ in range(args.num_hidden_layers)]

    def __call__(self, x: mx.array, groups: Groups) -> mx.array:
        for layer in self.layer:
            x = layer(x, groups)
        return x


class Model(TextEncoder):
    """The dense encoder, Hugging Face's ``BertModel`` without its pooler: the last hidden state of a call."""

    model_type = "bert"

    def __init__(self, args: ModelArgs):
        super().__init__()
        self.args = args
        self.embeddings = Embeddings(args)
        self.encoder = Encoder(args)

    def __call__(
        self, input_ids: mx.array, lengths: mx.array | None = None, token_type_ids: mx.array | None = None
    ) -> mx.array:
        """As :meth:`TextEncoder.__call__`.

        Args:
            input_ids: ``[B, T]``.
            lengths: ``[B]``.
            token_type_ids: ``[B, T]`` integers below ``type_vocab_size``; ``None`` means zeros.
        """
        groups = self._groups([(input_ids, lengths)])
        return groups.split(self.hidden(groups, token_type_ids))[0]

    def hidden(self, groups: Groups, token_type_ids: mx.array | None = None) -> mx.array:
        return self.encoder(self.embeddings(groups, token_type_ids), groups)

    @property
    def layers(self) -> list[Layer]:
        return self.encoder.layer

    def sanitize(self, weights: Mapping[str, mx.array]) -> Weights:
        """Renames a checkpoint's tensors to this model's parameters, and drops the heads and buffers it lacks."""
        body = {name.removeprefix("bert."): tensor for name, tensor in _modern_names(weights).items()}
        ignored = (*_IGNORED, "cls.predictions.")
        return {name: tensor for name, tensor in body.items() if not name.startswith(ignored)}

    def fuse(self) -> None:
        """Makes query, key and value of every layer one product; called once the weights are loaded."""
        for layer in self.layers:
            layer.attention.self.fuse()


class Transform(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.activation = args.activation
        self.dense = Linear(args.hidden_size, args.hidden_size)
        self.LayerNorm = LayerNorm(args.hidden_size, args.layer_norm_eps)

    def __call__(self, x: mx.array) -> mx.array:
        return self.LayerNorm(self.dense(x, activation=self.activation))


class Predictions(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.transform = Transform(args)
        self.bias = mx.zeros((args.vocab_size,))
        if not args.tie_word_embeddings:
            self.decoder = Linear(args.hidden_size, args.vocab_size, bias=False)


class Heads(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.predictions = Predictions(args)


class MaskedLM(VocabularyHead):
    """The encoder with its vocabulary head, Hugging Face's ``BertForMaskedLM``."""

    def __init__(self, args: ModelArgs):
        super().__init__()
        self.args = args
        self.bert = Model(args)
        self.cls = Heads(args)

    def features(
        self, input_ids: mx.array, lengths: mx.array | None = None, token_type_ids: mx.array | None = None
    ) -> mx.array:
        return self.cls.predictions.transform(self.bert(input_ids, lengths, token_type_ids))

    @property
    def decoder_weight(self) -> mx.array:
        if self.args.tie_word_embeddings:
            return self.bert.embeddings.word_embeddings.weight
        return self.cls.predictions.decoder.weight

    @property
    def decoder_bias(self) -> mx.array:
        return self.cls.predictions.bias

    def sanitize(self, weights: Mapping[str, mx.array]) -> Weights:
        """Renames a checkpoint's tensors to this model's parameters, and drops the heads and buffers it lacks.

        A tied decoder's weight is dropped too: it is the word embeddings again. Its bias is taken under either name.
        """
        head = {name: tensor for name, tensor in _modern_names(weights).items() if name.startswith("cls.predictions.")}
        other_bias = head.pop("cls.predictions.decoder.bias", None)
        if other_bias is not None:
            head.setdefault("cls.predictions.bias", other_bias)
        if self.args.tie_word_embeddings:
            head.pop("cls.predictions.decoder.weight", None)
        body = self.bert.sanitize(weights)
        return head | {f"bert.{name}": tensor for name, tensor in body.items()}

    def fuse(self) -> None:
        """Makes query, key and value of every layer one product; called once the weights are loaded."""
        self.bert.fuse()


def _modern_names(weights: Mapping[str, mx.array]) -> Weights:
    """Checkpoints converted from TensorFlow call a norm's weight and bias ``gamma`` and ``beta``."""
    return {
        name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias"): tensor
        for name, tensor in weights.items()
    }
