"""DistilBERT, dense and masked-LM (Sanh et al. 2019, arXiv:1910.01108): BERT without token types and pooler.

The parameters have the names of Hugging Face's ``DistilBertModel`` and ``DistilBertForMaskedLM``. Shapes: ``B`` rows of
``T`` tokens, ``H`` hidden units, ``V`` words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from .checkpoint import Weights
from .config import ACTIVATIONS, check_choice, check_divides, check_present, check_sizes, refuse
from .groups import Groups, TextEncoder, split_heads
from .layers import Joined, LayerNorm, Linear
from .vocabulary_head import VocabularyHead

_NORM_EPS = 1e-12  # no config says another
_HEAD = ("vocab_transform.", "vocab_layer_norm.", "vocab_projector.")
_BUFFERS = ("embeddings.position_ids",)


@dataclass
class ModelArgs:
    """What of a DistilBERT ``config.json`` decides the network; names are the config's."""

    vocab_size: int
    dim: int
    n_layers: int
    n_heads: int
    hidden_dim: int
    max_position_embeddings: int
    activation: str = "gelu"
    tie_word_embeddings: bool = True

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> ModelArgs:
        """The arguments in a parsed ``config.json``.

        Raises:
            ValueError: A size is absent or not a positive integer, or the config asks for what this model does not
                compute.
        """
        sizes = [field.name for field in fields(cls) if field.type == "int"]
        check_present("distilbert", config, sizes)
        check_choice("distilbert", "model_type", config.get("model_type", "distilbert"), ["distilbert"])
        refuse("distilbert", config, ("pruned_heads", "quantization_config"))
        args = cls(**{field.name: config[field.name] for field in fields(cls) if field.name in config})
        check_sizes("distilbert", {name: getattr(args, name) for name in sizes})
        check_choice("distilbert", "activation", args.activation, ACTIVATIONS)
        check_divides("distilbert", "dim", args.dim, args.n_heads)
        return args


class Embeddings(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.word_embeddings = nn.Embedding(args.vocab_size, args.dim)
        self.position_embeddings = nn.Embedding(args.max_position_embeddings, args.dim)
        self.LayerNorm = LayerNorm(args.dim, _NORM_EPS)

    def __call__(self, groups: Groups) -> mx.array:
        return self.LayerNorm(self.word_embeddings(groups.input_ids) + self.position_embeddings(groups.positions))


class Attention(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.num_heads = args.n_heads
        self.scale = (args.dim // args.n_heads) ** -0.5
        self.q_lin = Linear(args.dim, args.dim)
        self.k_lin = Linear(args.dim, args.dim)
        self.v_lin = Linear(args.dim, args.dim)
        self.out_lin = Linear(args.dim, args.dim)
        self._joined = Joined()

    @property
    def projections(self) -> tuple[Linear, Linear, Linear]:
        return self.q_lin, self.k_lin, self.v_lin

    def __call__(self, x: mx.array, groups: Groups) -> mx.array:
        """``x`` and what it attends to."""
        query, key, value = (split_heads(part, self.num_heads) for part in self._joined(x, self.projections))
        return self.out_lin(groups.attend(query, key, value, scale=self.scale), residual=x)

    def fuse(self) -> None:
        """Makes the three projections one product from now on."""
        self._joined.join(self.projections)


class FeedForward(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.activation = ACTIVATIONS[args.activation]
        self.lin1 = Linear(args.dim, args.hidden_dim)
        self.lin2 = Linear(args.hidden_dim, args.dim)

    def __call__(self, x: mx.array) -> mx.array:
        """``x`` and its image."""
        return self.lin2(self.lin1(x, activation=self.activation), residual=x)


class Layer(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.attention = Attention(args)
        self.sa_layer_norm = LayerNorm(args.dim, _NORM_EPS)
        self.ffn = FeedForward(args)
        self.output_layer_norm = LayerNorm(args.dim, _NORM_EPS)

    def __call__(self, x: mx.array, groups: Groups) -> mx.array:
        x = self.sa_layer_norm(self.attention(x, groups))
        return self.output_layer_norm(self.ffn(x))


class Transformer(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.layer = [Layer(args) for _ in range(args.n_layers)]

    def __call__(self, x: mx.array, groups: Groups) -> mx.array:
        for layer in self.layer:
            x = layer(x, groups)
        return x


class Model(TextEncoder):
    """The dense encoder, Hugging Face's ``DistilBertModel``: the last hidden state of a call."""

    model_type = "distilbert"

    def __init__(self, args: ModelArgs):
        super().__init__()
        self.args = args
        self.embeddings = Embeddings(args)
        self.transformer = Transformer(args)

    def hidden(self, groups: Groups) -> mx.array:
        return self.transformer(self.embeddings(groups), groups)

    @property
    def layers(self) -> list[Layer]:
        return self.transformer.layer

    def sanitize(self, weights: Mapping[str, mx.array]) -> Weights:
        """Renames a checkpoint's tensors to this model's parameters, and drops the heads and buffers it lacks."""
        body = {name.removeprefix("distilbert."): tensor for name, tensor in weights.items()}
        return {name: tensor for name, tensor in body.items() if not name.startswith((*_HEAD, *_BUFFERS))}

    def fuse(self) -> None:
        """Makes query, key and value of every layer one product; called once the weights are loaded."""
        for layer in self.layers:
            layer.attention.fuse()


class Projector(nn.Module):
    """The decoder: a bias, and a weight unless it is the word embeddings."""

    def __init__(self, args: ModelArgs):
        super().__init__()
        self.bias = mx.zeros((args.vocab_size,))
        if not args.tie_word_embeddings:
            self.weight = mx.zeros((args.vocab_size, args.dim))


class MaskedLM(VocabularyHead):
    """The encoder with its vocabulary head, Hugging Face's ``DistilBertForMaskedLM``."""

    def __init__(self, args: ModelArgs):
        super().__init__()
        self.args = args
        self.activation = ACTIVATIONS[args.activation]
        self.distilbert = Model(args)
        self.vocab_transform = Linear(args.dim, args.dim)
        self.vocab_layer_norm = LayerNorm(args.dim, _NORM_EPS)
        self.vocab_projector = Projector(args)

    def features(
        self, input_ids: mx.array, lengths: mx.array | None = None, token_type_ids: mx.array | None = None
    ) -> mx.array:
        if token_type_ids is not None:
            raise ValueError("[distilbert] token_type_ids were given; the model has no token types")
        hidden = self.distilbert(input_ids, lengths)
        return self.vocab_layer_norm(self.vocab_transform(hidden, activation=self.activation))

    @property
    def decoder_weight(self) -> mx.array:
        if self.args.tie_word_embeddings:
            return self.distilbert.embeddings.word_embeddings.weight
        return self.vocab_projector.weight

    @property
    def decoder_bias(self) -> mx.array:
        return self.vocab_projector.bias

    def sanitize(self, weights: Mapping[str, mx.array]) -> Weights:
        """As :meth:`Model.sanitize`, with the head; a tied decoder's weight, the word embeddings again, is dropped."""
        head = {name: tensor for name, tensor in weights.items() if name.startswith(_HEAD)}
        if self.args.tie_word_embeddings:
            head.pop("vocab_projector.weight", None)
        body = self.distilbert.sanitize(weights)
        return head | {f"distilbert.{name}": tensor for name, tensor in body.items()}

    def fuse(self) -> None:
        """Makes query, key and value of every layer one product; called once the weights are loaded."""
        self.distilbert.fuse()
