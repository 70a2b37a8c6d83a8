"""BERT, dense and masked-LM (Devlin et al. 2018, arXiv:1810.04805).

The parameters have the names of Hugging Face's ``BertModel`` and ``BertForMaskedLM``. Shapes: ``B`` rows of ``T``
tokens, ``H`` hidden units, ``V`` words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn

from ..ops import attention, linear
from ..ops.matmul import Activation
from .checkpoint import Weights
from .layers import LayerNorm, Linear

_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
}

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
        return _ACTIVATIONS[self.hidden_act]

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    def _check(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "int" and (type(value) is not int or value < 1):
                raise ValueError(f"[bert] {field.name} is {value!r}; it must be a positive integer")
        if self.hidden_act not in _ACTIVATIONS:
            raise ValueError(f"[bert] hidden_act is {self.hidden_act!r}; it must be one of {', '.join(_ACTIVATIONS)}")
        if self.hidden_size % self.num_attention_heads != 0:
            raise ValueError(
                f"[bert] hidden_size is {self.hidden_size}; it must be divisible by the "
                f"{self.num_attention_heads} attention heads"
            )


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    sizes = [field.name for field in fields(ModelArgs) if field.type == "int" and field.name != "type_vocab_size"]
    absent = [name for name in sizes if name not in config]
    if absent:
        raise ValueError(f"[bert] the config lacks {', '.join(absent)}")
    if config.get("model_type", "bert") != "bert":
        raise ValueError(f"[bert] model_type is {config['model_type']!r}; it must be 'bert'")
    positions = config.get("position_embedding_type", "absolute")
    if positions != "absolute":
        raise ValueError(f"[bert] position_embedding_type is {positions!r}; only 'absolute' is computed")
    for name in ("is_decoder", "add_cross_attention", "pruned_heads", "quantization_config"):
        if config.get(name):
            raise ValueError(f"[bert] {name} is {config[name]!r} in the config; this model does not compute that")


class Embeddings(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.word_embeddings = nn.Embedding(args.vocab_size, args.hidden_size)
        self.position_embeddings = nn.Embedding(args.max_position_embeddings, args.hidden_size)
        self.token_type_embeddings = nn.Embedding(args.type_vocab_size, args.hidden_size)
        self.LayerNorm = LayerNorm(args.hidden_size, args.layer_norm_eps)

    def __call__(self, input_ids: mx.array, token_type_ids: mx.array | None) -> mx.array:
        positions = self.position_embeddings.weight[: input_ids.shape[1]]
        all_types = self.token_type_embeddings.weight
        types = all_types[0] if token_type_ids is None else all_types[token_type_ids]
        return self.LayerNorm(self.word_embeddings(input_ids) + (positions + types))


class _Fused(NamedTuple):
    """The three projections as one product, and the parameters it was made of."""

    weight: mx.array
    bias: mx.array
    sources: tuple[mx.array, ...]


class SelfAttention(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.num_heads = args.num_attention_heads
        self.head_dim = args.head_dim
        self.query = Linear(args.hidden_size, args.hidden_size)
        self.key = Linear(args.hidden_size, args.hidden_size)
        self.value = Linear(args.hidden_size, args.hidden_size)
        self._fused: _Fused | None = None

    def fuse(self) -> None:
        """Stacks the three projections, so that they are one product from now on. The parameters become views of it.

        Parameters that are replaced later, by an optimizer or under ``mx.grad``, are used one by one.
        """
        parts = (self.query, self.key, self.value)
        weight = mx.concatenate([part.weight for part in parts])
        bias = mx.concatenate([part.bias for part in parts])
        for part, part_weight, part_bias in zip(parts, mx.split(weight, 3), mx.split(bias, 3), strict=True):
            part.weight = part_weight
            part.bias = part_bias
        self._fused = _Fused(weight, bias, self._sources())

    def __call__(self, x: mx.array, lengths: mx.array | None) -> mx.array:
        query, key, value = self._project(x)
        context = attention(query, key, value, scale=self.head_dim**-0.5, lengths=lengths)
        return context.swapaxes(1, 2).flatten(-2)

    def _project(self, x: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        """Query, key and value of ``x [B, T, H]``, each ``[B, heads, T, H / heads]``."""
        fused = self._valid_fused()
        if fused is None:
            parts = [part(x) for part in (self.query, self.key, self.value)]
        else:
            parts = list(mx.split(linear(x, fused.weight, fused.bias), 3, axis=-1))
        query, key, value = (mx.unflatten(part, -1, (self.num_heads, self.head_dim)).swapaxes(1, 2) for part in parts)
        return query, key, value

    def _valid_fused(self) -> _Fused | None:
        fused = self._fused
        if fused is None or not all(type(part) is Linear for part in (self.query, self.key, self.value)):
            return None
        same = all(a is b for a, b in zip(fused.sources, self._sources(), strict=True))
        return fused if same else None

    def _sources(self) -> tuple[mx.array, ...]:
        return tuple(array for part in (self.query, self.key, self.value) for array in (part.weight, part.bias))


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

    def __call__(self, x: mx.array, lengths: mx.array | None) -> mx.array:
        return self.output(self.self(x, lengths), x)


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

    def __call__(self, x: mx.array, lengths: mx.array | None) -> mx.array:
        x = self.attention(x, lengths)
        return self.output(self.intermediate(x), x)


class Encoder(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.layer = [Layer(args) for _ in range(args.num_hidden_layers)]

    def __call__(self, x: mx.array, lengths: mx.array | None) -> mx.array:
        for layer in self.layer:
            x = layer(x, lengths)
        return x


class Model(nn.Module):
    """The dense encoder, Hugging Face's ``BertModel`` without its pooler."""

    def __init__(self, args: ModelArgs):
        super().__init__()
        self.args = args
        self.embeddings = Embeddings(args)
        self.encoder = Encoder(args)

    def __call__(
        self, input_ids: mx.array, lengths: mx.array | None = None, token_type_ids: mx.array | None = None
    ) -> mx.array:
        """The last hidden state.

        Args:
            input_ids: ``[B, T]`` integers below ``vocab_size``; they are not checked here.
            lengths: ``[B]`` integers; row ``b`` attends to its first ``lengths[b]`` tokens only. ``None``: to all.
                What stands after them never changes the row.
            token_type_ids: ``[B, T]`` integers below ``type_vocab_size``; ``None`` means zeros.

        Returns:
            ``[B, T, H]`` in the dtype of the weights. Positions past a row's length hold finite values without meaning.

        Raises:
            ValueError: ``input_ids`` is not ``[B, T]``, or has more tokens than the model has positions.
        """
        if input_ids.ndim != 2:
            raise ValueError(f"[bert] input_ids has shape {input_ids.shape}; it must be [B, T]")
        limit = self.args.max_position_embeddings
        if input_ids.shape[1] > limit:
            raise ValueError(f"[bert] input_ids has {input_ids.shape[1]} tokens a row; the model has {limit} positions")
        return self.encoder(self.embeddings(input_ids, token_type_ids), lengths)

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


class MaskedLM(nn.Module):
    """The encoder with its vocabulary head, Hugging Face's ``BertForMaskedLM``."""

    def __init__(self, args: ModelArgs):
        super().__init__()
        self.args = args
        self.bert = Model(args)
        self.cls = Heads(args)

    def __call__(
        self, input_ids: mx.array, lengths: mx.array | None = None, token_type_ids: mx.array | None = None
    ) -> mx.array:
        """Logits ``[B, T, V]``; arguments and errors are those of :meth:`Model.__call__`."""
        return self.decode(self.features(input_ids, lengths, token_type_ids))

    def features(
        self, input_ids: mx.array, lengths: mx.array | None = None, token_type_ids: mx.array | None = None
    ) -> mx.array:
        """``[B, T, H]``, what :meth:`decode` takes; arguments and errors are those of :meth:`Model.__call__`."""
        return self.cls.predictions.transform(self.bert(input_ids, lengths, token_type_ids))

    def decode(self, features: mx.array) -> mx.array:
        """Logits ``[..., V]`` of ``features [..., H]``."""
        return linear(features, self.decoder_weight, self.decoder_bias)

    @property
    def decoder_weight(self) -> mx.array:
        """``[V, H]``: the word embeddings, unless the config unties them."""
        if self.args.tie_word_embeddings:
            return self.bert.embeddings.word_embeddings.weight
        return self.cls.predictions.decoder.weight

    @property
    def decoder_bias(self) -> mx.array:
        """``[V]``."""
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
