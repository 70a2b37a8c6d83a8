"""Qwen3.5 text models, with the interface, parameter names and caches of ``mlx_lm.models.qwen3_5``.

Three layers of four mix tokens by a gated delta rule with a short convolution before it; the others by gated attention
with rotary embedding of a part of each head. Names and values of parameters are mlx-lm's, so that its checkpoints,
adapters and conversions fit both ways; projections of one input are joined behind these names.

Source: transformers 5, ``models/qwen3_5``.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from ..ops import attention, causal_conv1d, gated_delta, gated_rms_norm, qk_norm_rope, sigmoid_gate, swiglu
from ..ops.rope import rope_inv_freq
from ..reference.attention import Mask
from .config import check_divides, check_sizes
from .layers import Embedding, Joined, Linear, QuantizedLinear, RMSNorm, add_linear, split_heads

Weights = dict[str, mx.array]

LINEAR, FULL = "linear_attention", "full_attention"

# Fields of the config that count something.
_SIZES = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size", "full_attention_interval"),
    *("num_attention_heads", "num_key_value_heads", "head_dim", "linear_num_value_heads", "linear_num_key_heads"),
    *("linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim"),
)


@dataclass
class TextModelArgs:
    """The text part of a ``config.json``; defaults are those of transformers."""

    hidden_size: int = 4096
    intermediate_size: int = 12288
    num_hidden_layers: int = 32
    num_attention_heads: int = 16
    num_key_value_heads: int = 4
    head_dim: int = 256
    rms_norm_eps: float = 1e-6
    vocab_size: int = 248320
    linear_num_value_heads: int = 32
    linear_num_key_heads: int = 16
    linear_key_head_dim: int = 128
    linear_value_head_dim: int = 128
    linear_conv_kernel_dim: int = 4
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    hidden_act: str = "silu"
    layer_types: list[str] | None = None
    full_attention_interval: int = 4
    num_experts: int | None = 0
    rope_theta: float = 10000.0
    partial_rotary_factor: float = 0.25
    rope_parameters: dict[str, Any] | None = None
    rope_scaling: dict[str, Any] | None = None
    model_type: str = "qwen3_5_text"
    rotary_dim: int = field(init=False)

    def __post_init__(self) -> None:
        rope = self.rope_parameters or self.rope_scaling or {}
        if not isinstance(rope, dict):
            raise ValueError(f"[qwen3_5] rope_parameters is {rope!r}; it must be a table")
        rope_type = rope.get("rope_type", rope.get("type", "default"))
        if rope_type not in ("default", "mrope"):
            raise ValueError(f"[qwen3_5] rope_type is {rope_type!r}; only 'default' is computed here")
        self.rope_theta = rope.get("rope_theta", self.rope_theta)
        self.partial_rotary_factor = rope.get("partial_rotary_factor", self.partial_rotary_factor)
        self._check_numbers()
        self.rotary_dim = int(self.head_dim * self.partial_rotary_factor)
        if self.rotary_dim < 2 or self.rotary_dim % 2:
            raise ValueError(
                f"[qwen3_5] partial_rotary_factor is {self.partial_rotary_factor}, which makes {self.rotary_dim} of "
                f"head_dim, {self.head_dim}, rotary; it must be a positive even number"
            )
        if self.layer_types is None:
            self.layer_types = [
                FULL if (i + 1) % self.full_attention_interval == 0 else LINEAR for i in range(self.num_hidden_layers)
            ]
        self._check()

    def _check_numbers(self) -> None:
        check_sizes("qwen3_5", {name: getattr(self, name) for name in _SIZES})
        check_divides("qwen3_5", "num_attention_heads", self.num_attention_heads, self.num_key_value_heads, "key heads")
        for name in ("rms_norm_eps", "rope_theta", "partial_rotary_factor"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 < value < math.inf:
                raise ValueError(f"[qwen3_5] {name} is {value!r}; it must be a positive number")
        if self.partial_rotary_factor > 1:
            raise ValueError(f"[qwen3_5] partial_rotary_factor is {self.partial_rotary_factor}; it must be at most 1")

    def _check(self) -> None:
        assert self.layer_types is not None
        known = isinstance(self.layer_types, list) and all(kind in (LINEAR, FULL) for kind in self.layer_types)
        if not known or len(self.layer_types) != self.num_hidden_layers:
            raise ValueError(
                f"[qwen3_5] layer_types is {self.layer_types!r}; it must be a list of {self.num_hidden_layers} of "
                f"{LINEAR!r} and {FULL!r}"
            )
        if self.num_experts:
            raise ValueError(f"[qwen3_5] num_experts is {self.num_experts}; only dense models are computed here")
        if self.hidden_act != "silu":
            raise ValueError(f"[qwen3_5] hidden_act is {self.hidden_act!r}; it must be 'silu'")
        if self.linear_num_value_heads % self.linear_num_key_heads:
            raise ValueError(
                f"[qwen3_5] linear_num_key_heads is {self.linear_num_key_heads}; "
                f"it must divide linear_num_value_heads, {self.linear_num_value_heads}"
            )

    @classmethod
    def from_dict(cls, params: dict[str, Any]) -> TextModelArgs:
        known = inspect.signature(cls).parameters
        return cls(**{name: value for name, value in params.items() if name in known and value is not None})


@dataclass
class ModelArgs:
    """A ``config.json``: that of a text model, or of a multimodal one with its ``text_config``."""

    model_type: str
    text_config: dict[str, Any]

    @classmethod
    def from_dict(cls, params: dict[str, Any]) -> ModelArgs:
        text = dict(params.get("text_config") or params)
        # A multimodal config may say it outside of its text part alone.
        if "tie_word_embeddings" in params:
            text.setdefault("tie_word_embeddings", params["tie_word_embeddings"])
        return cls(params["model_type"], text)


class GatedDeltaNet(nn.Module):
    """Linear attention: ``out_proj(gated_rms_norm(gated_delta(causal_conv1d(qkv)), z))``."""

    def __init__(self, args: TextModelArgs):
        super().__init__()
        self.num_k_heads, self.num_v_heads = args.linear_num_key_heads, args.linear_num_value_heads
        self.head_k_dim, self.head_v_dim = args.linear_key_head_dim, args.linear_value_head_dim
        self.key_dim, self.value_dim = self.num_k_heads * self.head_k_dim, self.num_v_heads * self.head_v_dim
        self.conv_dim = 2 * self.key_dim + self.value_dim
        hidden = args.hidden_size
        self.conv1d = nn.Conv1d(
            self.conv_dim, self.conv_dim, args.linear_conv_kernel_dim, groups=self.conv_dim, bias=False
        )
        self.in_proj_qkv = Linear(hidden, self.conv_dim, bias=False)
        self.in_proj_z = Linear(hidden, self.value_dim, bias=False)
        self.in_proj_b = Linear(hidden, self.num_v_heads, bias=False)
        self.in_proj_a = Linear(hidden, self.num_v_heads, bias=False)
        self.dt_bias = mx.ones(self.num_v_heads)
        self.A_log = mx.log(mx.random.uniform(low=1.0, high=16.0, shape=(self.num_v_heads,)))
        self.norm = RMSNorm(self.head_v_dim, args.rms_norm_eps)
        self.out_proj = Linear(self.value_dim, hidden, bias=False)
        self._joined = Joined()

    @property
    def projections(self) -> list[nn.Module]:
        return [self.in_proj_qkv, self.in_proj_z, self.in_proj_b, self.in_proj_a]

    def join(self) -> None:
        self._joined.join(self.projections)

    def __call__(self, x: mx.array, mask: mx.array | None = None, cache: Any = None) -> mx.array:
        """``cache`` holds the last inputs of the convolution and the state, and where rows begin and end.

        A ``mask [B, T]`` says so in its place: True for the tokens of each row, which are neighbours.
        """
        T = x.shape[1]
        starts, lengths = _span_of(mask) if mask is not None else _span_in(cache)
        conv_state, state = (None, None) if cache is None else (cache[0], cache[1])
        qkv, z, b, a = self._joined(x, self.projections)
        weight = self.conv1d.weight.squeeze(-1)
        qkv, conv_state = causal_conv1d(qkv, weight, conv_state, starts=starts, lengths=lengths)
        q, k, v = mx.split(qkv, [self.key_dim, 2 * self.key_dim], axis=-1)
        y, state = gated_delta(
            mx.unflatten(q, -1, (self.num_k_heads, self.head_k_dim)),
            mx.unflatten(k, -1, (self.num_k_heads, self.head_k_dim)),
            mx.unflatten(v, -1, (self.num_v_heads, self.head_v_dim)),
            state=state,
            gates=(a, b, self.A_log, self.dt_bias),
            starts=starts,
            lengths=lengths,
            normalize_qk=True,
        )
        if cache is not None:
            cache[0], cache[1] = conv_state, state
            cache.advance(T)
        z = mx.unflatten(z, -1, (self.num_v_heads, self.head_v_dim))
        y = gated_rms_norm(y, z, self.norm.weight, self.norm.eps)
        return self.out_proj(y.flatten(-2))


def _span_in(cache: Any) -> tuple[mx.array | None, mx.array | None]:
    """Where the rows of a batch begin and end, as an ``ArraysCache`` of mlx-lm knows it."""
    return getattr(cache, "left_padding", None), getattr(cache, "lengths", None)


def _span_of(mask: mx.array) -> tuple[mx.array, mx.array]:
    """Where the True of each row begin and end."""
    starts = mx.argmax(mask, axis=1).astype(mx.int32)
    return starts, starts + mx.sum(mask.astype(mx.int32), axis=1)


class Attention(nn.Module):
    """Causal attention with normed queries and keys, partial rotary embedding, and a gate on its output."""

    def __init__(self, args: TextModelArgs):
        super().__init__()
        self.num_attention_heads, self.num_key_value_heads = args.num_attention_heads, args.num_key_value_heads
        self.head_dim, self.rotary_dim = args.head_dim, args.rotary_dim
        self.scale = self.head_dim**-0.5
        hidden, bias = args.hidden_size, args.attention_bias
        self.q_proj = Linear(hidden, 2 * self.num_attention_heads * self.head_dim, bias=bias)  # query and gate a head
        self.k_proj = Linear(hidden, self.num_key_value_heads * self.head_dim, bias=bias)
        self.v_proj = Linear(hidden, self.num_key_value_heads * self.head_dim, bias=bias)
        self.o_proj = Linear(self.num_attention_heads * self.head_dim, hidden, bias=bias)
        self.q_norm = RMSNorm(self.head_dim, args.rms_norm_eps)
        self.k_norm = RMSNorm(self.head_dim, args.rms_norm_eps)
        self._inv_freq = rope_inv_freq(self.rotary_dim, args.rope_theta)
        self._joined = Joined()

    @property
    def projections(self) -> list[nn.Module]:
        return [self.q_proj, self.k_proj, self.v_proj]

    def join(self) -> None:
        self._joined.join(self.projections)

    def __call__(
        self, x: mx.array, mask: Mask | None = None, cache: Any = None, positions: mx.array | None = None
    ) -> mx.array:
        q, k, v = self._joined(x, self.projections)
        q, gate = mx.split(split_heads(q, self.num_attention_heads), 2, axis=-1)
        k, v = split_heads(k, self.num_key_value_heads), split_heads(v, self.num_key_value_heads)
        positions = _positions(x.shape[1], cache) if positions is None else positions
        q, k = qk_norm_rope(
            q, k, self.q_norm.weight, self.k_norm.weight, positions, self._inv_freq, self.q_norm.eps,
            rotary_dim=self.rotary_dim,
        )  # fmt: skip
        y = self._attend(q, k, v, mask, cache)
        return self.o_proj(sigmoid_gate(y.swapaxes(1, 2), gate.swapaxes(1, 2)).flatten(-2))

    def _attend(self, q: mx.array, k: mx.array, v: mx.array, mask: Mask | None, cache: Any) -> mx.array:
        if hasattr(cache, "bits"):
            return self._attend_quantized(q, k, v, mask, cache)
        if cache is not None:
            k, v = cache.update_and_fetch(k, v)
        return attention(
            q,
            k,
            v,
            scale=self.scale,
            mask="causal" if mask is None else mask,
            starts=getattr(cache, "left_padding", None),
            prefix=getattr(cache, "prefix", None),
        )

    def _attend_quantized(self, q: mx.array, k: mx.array, v: mx.array, mask: Mask | None, cache: Any) -> mx.array:
        """Keys and values that mlx-lm keeps in few bits, by its own function."""
        from mlx_lm.models.base import scaled_dot_product_attention

        if mask is None:
            mask = cache.make_mask(q.shape[2], return_array=False, window_size=None)
        keys, values = cache.update_and_fetch(k, v)
        return scaled_dot_product_attention(q, keys, values, cache, self.scale, mask)  # type: ignore[arg-type]


def _positions(T: int, cache: Any) -> mx.array:
    """Positions of T new tokens: ``[T]``, or ``[B, T]`` where rows are at different ones."""
    offset = 0 if cache is None else cache.offset
    if isinstance(offset, mx.array):
        return offset[..., None] + mx.arange(T, dtype=mx.int32)
    return mx.array([offset], mx.int32) if T == 1 else mx.arange(offset, offset + T, dtype=mx.int32)


class MLP(nn.Module):
    """``down_proj(silu(gate_proj(x)) up_proj(x))``."""

    def __init__(self, hidden: int, intermediate: int):
        super().__init__()
        self.gate_proj = Linear(hidden, intermediate, bias=False)
        self.up_proj = Linear(hidden, intermediate, bias=False)
        self.down_proj = Linear(intermediate, hidden, bias=False)
        self._joined = Joined()

    def join(self) -> None:
        self._joined.join([self.gate_proj, self.up_proj])

    def __call__(self, x: mx.array) -> mx.array:
        return self.down_proj(self._activated(x))

    def add(self, x: mx.array, residual: mx.array) -> mx.array:
        """``self(x) + residual``."""
        return add_linear(self.down_proj, self._activated(x), residual)

    def _activated(self, x: mx.array) -> mx.array:
        gate, up = self._joined(x, [self.gate_proj, self.up_proj])
        return swiglu(gate, up)


class DecoderLayer(nn.Module):
    def __init__(self, args: TextModelArgs, kind: str):
        super().__init__()
        self.is_linear = kind == LINEAR
        if self.is_linear:
            self.linear_attn = GatedDeltaNet(args)
        else:
            self.self_attn = Attention(args)
        self.input_layernorm = RMSNorm(args.hidden_size, args.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(args.hidden_size, args.rms_norm_eps)
        self.mlp = MLP(args.hidden_size, args.intermediate_size)

    def __call__(
        self, x: mx.array, mask: Mask | None = None, cache: Any = None, positions: mx.array | None = None
    ) -> mx.array:
        if self.is_linear:
            assert not isinstance(mask, str)
            mixed = self.linear_attn(self.input_layernorm(x), mask, cache)
        else:
            mixed = self.self_attn(self.input_layernorm(x), mask, cache, positions)
        y, x = self.post_attention_layernorm.add(mixed, x)
        return self.mlp.add(y, x)


class Qwen35TextModel(nn.Module):
    """Token ids to normed hidden states."""

    def __init__(self, args: TextModelArgs):
        super().__init__()
        assert args.layer_types is not None
        self.embed_tokens = Embedding(args.vocab_size, args.hidden_size)
        self.layers = [DecoderLayer(args, kind) for kind in args.layer_types]
        self.norm = RMSNorm(args.hidden_size, args.rms_norm_eps)

    def __call__(
        self, inputs: mx.array, cache: Sequence[Any] | None = None, input_embeddings: mx.array | None = None
    ) -> mx.array:
        x = self.embed_tokens(inputs) if input_embeddings is None else input_embeddings
        caches = [None] * len(self.layers) if cache is None else cache
        # All layers of attention stand at the same positions.
        attends = next((c for layer, c in zip(self.layers, caches, strict=True) if not layer.is_linear), None)
        positions = _positions(x.shape[1], attends)
        for layer, layer_cache in zip(self.layers, caches, strict=True):
            x = layer(x, cache=layer_cache, positions=positions)
        return self.norm(x)


class TextModel(nn.Module):
    """Token ids to logits."""

    def __init__(self, args: TextModelArgs):
        super().__init__()
        self.args = args
        self.model_type = args.model_type
        self.model = Qwen35TextModel(args)
        if not args.tie_word_embeddings:
            self.lm_head = Linear(args.hidden_size, args.vocab_size, bias=False)

    def __call__(
        self, inputs: mx.array, cache: Sequence[Any] | None = None, input_embeddings: mx.array | None = None
    ) -> mx.array:
        return self.head(self.model(inputs, cache, input_embeddings))

    def head(self, hidden: mx.array) -> mx.array:
        """Logits of normed hidden states."""
        if self.args.tie_word_embeddings:
            return self.model.embed_tokens.as_linear(hidden)
        return self.lm_head(hidden)

    def head_rows(self, ids: mx.array) -> mx.array:
        """Rows of the head's matrix, decoded where they are packed."""
        if self.args.tie_word_embeddings:
            return self.model.embed_tokens(ids)
        if isinstance(self.lm_head, Linear | QuantizedLinear):
            return self.lm_head.rows(ids)
        raise ValueError(f"[qwen3_5] the head is a {type(self.lm_head).__name__}, whose rows cannot be read one by one")

    @property
    def layers(self) -> list[DecoderLayer]:
        return self.model.layers

    def make_cache(self) -> list[Any]:
        """An empty cache of mlx-lm's kinds for each layer."""
        from mlx_lm.models.cache import ArraysCache, KVCache

        return [ArraysCache(size=2) if layer.is_linear else KVCache() for layer in self.layers]


class Model(nn.Module):
    """``Model(ModelArgs.from_dict(config))``, as mlx-lm builds its models."""

    def __init__(self, args: ModelArgs):
        super().__init__()
        self.args = args
        self.model_type = args.model_type
        self.language_model = TextModel(TextModelArgs.from_dict(args.text_config))

    def __call__(
        self, inputs: mx.array, cache: Sequence[Any] | None = None, input_embeddings: mx.array | None = None
    ) -> mx.array:
        """``[B, T]`` ids (or embeddings ``[B, T, hidden]``) to logits ``[B, T, vocabulary]``; fills ``cache``."""
        return self.language_model(inputs, cache, input_embeddings)

    @property
    def model(self) -> Qwen35TextModel:
        return self.language_model.model

    @property
    def layers(self) -> list[DecoderLayer]:
        return self.language_model.layers

    def make_cache(self) -> list[Any]:
        return self.language_model.make_cache()

    @property
    def quant_predicate(self) -> None:
        """Every linear layer and the embedding may be quantized alike."""
        return None

    @property
    def cast_predicate(self) -> Any:
        """``A_log`` keeps its dtype in conversions."""
        return lambda path: not path.endswith("A_log")

    def sanitize(self, weights: Weights) -> Weights:
        """Weights by our names, from any layout: see :func:`sanitized`."""
        return sanitized(weights, tied=self.language_model.args.tie_word_embeddings)

    def load_weights(self, *args: Any, **keywords: Any) -> nn.Module:
        """As of any module; then projections of one input are joined."""
        super().load_weights(*args, **keywords)
        self.join()
        return self

    def join(self) -> None:
        """Makes one product of the projections of one input, whose weights become views of one array.

        A projection whose weights are replaced later is computed on its own.
        """
        for layer in self.layers:
            (layer.linear_attn if layer.is_linear else layer.self_attn).join()
            layer.mlp.join()


# Modules, past any wrappers, that are no part of the text model.
_DROPPED = ("visual", "vision_tower", "vision_model", "mtp")
_WRAPPERS = ("model", "language_model")
# Norms that Hugging Face's checkpoints store as weight - 1. That of the gated norm is stored as it is.
_SHIFTED_NORMS = ("input_layernorm", "post_attention_layernorm", "q_norm", "k_norm")


def sanitized(weights: Weights, *, tied: bool) -> Weights:
    """Text weights by mlx-lm's names and in its conventions.

    Takes the layouts of Hugging Face (text and multimodal), mlx-lm and mlx-vlm: wrappers ``model.`` and
    ``language_model.`` in any nesting; vision, multi-token prediction and rotary buffers are dropped, and the head of a
    tied model too. Where convolutions are ``(C, 1, K)``, norms hold ``weight - 1``: both are converted, once.

    Raises:
        ValueError: Two keys mean one parameter, or some convolutions are converted and some are not.
    """
    text: Weights = {}
    for key, value in weights.items():
        name = _text_name(key, tied)
        if name is None:
            continue
        if name in text:
            raise ValueError(f"[qwen3_5] {key} is there twice, under different prefixes")
        text[name] = value
    if not _is_raw(text):
        return text
    for name, value in text.items():
        module = name.rsplit(".", 2)[-2]
        if module == "conv1d":
            text[name] = value.moveaxis(2, 1)
        elif module in _SHIFTED_NORMS or name == "language_model.model.norm.weight":
            text[name] = value + 1.0
    return text


def _text_name(key: str, tied: bool) -> str | None:
    """Our name of a key; None when it is dropped. A key that no model has keeps its last parts, to be refused."""
    parts = key.split(".")
    while len(parts) > 1 and parts[0] in _WRAPPERS:
        parts = parts[1:]
    rest = ".".join(parts)
    if parts[0] in _DROPPED or rest.endswith("rotary_emb.inv_freq"):
        return None
    if parts[0] == "lm_head":
        return None if tied else f"language_model.{rest}"
    return f"language_model.model.{rest}"


def _is_raw(text: Weights) -> bool:
    """Whether weights are as Hugging Face stores them. Without convolutions norms tell: near 0, or near 1."""
    layouts = {value.shape[-1] != 1 for name, value in text.items() if name.endswith("conv1d.weight")}
    if len(layouts) > 1:
        raise ValueError("[qwen3_5] some convolutions of the checkpoint are converted for MLX and some are not")
    if layouts:
        return layouts.pop()
    norms = [value.astype(mx.float32).mean() for name, value in text.items() if name.endswith("layernorm.weight")]
    return bool(norms) and float(np.mean([norm.item() for norm in norms])) < 0.5
