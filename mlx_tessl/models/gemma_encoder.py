"""What the two EmbeddingGemma models share: Gemma's attention and MLP, looking both ways.

Shapes: ``B`` rows of ``T`` tokens, ``H`` hidden units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from ..ops import geglu, qk_norm_rope, rms_norm, rope_inv_freq
from .config import check_choice
from .groups import Groups, split_heads
from .layers import Joined, Linear, RMSNorm

LAYER_TYPES = ("sliding_attention", "full_attention")


@dataclass(frozen=True)
class AttentionArgs:
    """One layer's attention. ``window`` is the largest ``|i - j|`` that is seen, ``None`` for any."""

    hidden_size: int
    num_heads: int
    num_key_value_heads: int
    head_dim: int
    theta: float
    scale: float
    window: int | None
    norm_eps: float
    norm_offset: float
    normalize_value: bool


class Attention(nn.Module):
    def __init__(self, args: AttentionArgs):
        super().__init__()
        self.args = args
        width, key_width = (heads * args.head_dim for heads in (args.num_heads, args.num_key_value_heads))
        self.q_proj = Linear(args.hidden_size, width, bias=False)
        self.k_proj = Linear(args.hidden_size, key_width, bias=False)
        self.v_proj = Linear(args.hidden_size, key_width, bias=False)
        self.o_proj = Linear(width, args.hidden_size, bias=False)
        self.q_norm = RMSNorm(args.head_dim, args.norm_eps, args.norm_offset)
        self.k_norm = RMSNorm(args.head_dim, args.norm_eps, args.norm_offset)
        self._inv_freq = rope_inv_freq(args.head_dim, args.theta)
        self._joined = Joined()

    @property
    def projections(self) -> tuple[Linear, Linear, Linear]:
        return self.q_proj, self.k_proj, self.v_proj

    def __call__(self, x: mx.array, groups: Groups) -> mx.array:
        args = self.args
        heads = (args.num_heads, args.num_key_value_heads, args.num_key_value_heads)
        parts = self._joined(x, self.projections)
        query, key, value = (split_heads(part, count) for part, count in zip(parts, heads, strict=True))
        query, key = qk_norm_rope(
            query.swapaxes(0, 1),
            key.swapaxes(0, 1),
            self.q_norm.weight,
            self.k_norm.weight,
            groups.positions,
            self._inv_freq,
            args.norm_eps,
            weight_offset=args.norm_offset,
        )
        if args.normalize_value:
            value = rms_norm(value, None, args.norm_eps)
        query, key = query.swapaxes(0, 1), key.swapaxes(0, 1)
        return self.o_proj(groups.attend(query, key, value, scale=args.scale, window=args.window))

    def fuse(self) -> None:
        """Makes the three projections one product from now on."""
        self._joined.join(self.projections)


class MLP(nn.Module):
    """``down(gelu_tanh(gate(x)) up(x))``."""

    def __init__(self, hidden_size: int, intermediate_size: int):
        super().__init__()
        self.gate_proj = Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = Linear(intermediate_size, hidden_size, bias=False)
        self._joined = Joined()

    def __call__(self, x: mx.array) -> mx.array:
        gate, up = self._joined(x, (self.gate_proj, self.up_proj))
        return self.down_proj(geglu(gate, up))

    def fuse(self) -> None:
        """Makes the gate and what it gates one product from now on."""
        self._joined.join((self.gate_proj, self.up_proj))


def embed(table: nn.Embedding, input_ids: mx.array) -> mx.array:
    """``sqrt(H)`` times the rows of ``input_ids``; the factor is rounded to the table's dtype first."""
    rows = table(input_ids)
    return rows * mx.array(rows.shape[-1] ** 0.5, rows.dtype)


def read_layer_types(kind: str, config: Mapping[str, Any], default_pattern: int = 6) -> tuple[str, ...]:
    """``sliding_attention`` or ``full_attention`` for each layer; without a list every sixth one is full."""
    count = config["num_hidden_layers"]
    types = config.get("layer_types")
    if types is None:
        pattern = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern") or default_pattern
        types = ["full_attention" if (i + 1) % pattern == 0 else "sliding_attention" for i in range(count)]
    if len(types) != count:
        raise ValueError(f"[{kind}] layer_types has {len(types)} entries; there are {count} layers")
    for layer_type in types:
        check_choice(kind, "layer_types", layer_type, LAYER_TYPES)
    return tuple(types)


def read_thetas(kind: str, config: Mapping[str, Any]) -> dict[str, float]:
    """The base of the rotary frequencies by layer type, from ``rope_parameters`` or the keys that came before it."""
    if config.get("rope_scaling"):
        raise ValueError(f"[{kind}] rope_scaling is {config['rope_scaling']!r} in the config; that is not computed")
    thetas = {
        "full_attention": config.get("rope_theta", 1e6),
        "sliding_attention": config.get("rope_local_base_freq", 1e4),
    }
    for layer_type, parameters in (config.get("rope_parameters") or {}).items():
        check_choice(kind, "a key of rope_parameters", layer_type, LAYER_TYPES)
        check_choice(kind, "rope_type", parameters.get("rope_type", "default"), ["default"])
        thetas[layer_type] = parameters.get("rope_theta", thetas[layer_type])
    return {layer_type: float(theta) for layer_type, theta in thetas.items()}


def check_activation(kind: str, config: Mapping[str, Any]) -> None:
    name = config.get("hidden_activation") or config.get("hidden_act", "gelu_pytorch_tanh")
    check_choice(kind, "hidden_activation", name, ["gelu_pytorch_tanh", "gelu_new"])


def refuse_float16(kind: str, weights: Mapping[str, mx.array]) -> None:
    """Gemma's hidden states leave the range of float16 and come back as NaN."""
    if any(tensor.dtype == mx.float16 for tensor in weights.values()):
        raise ValueError(f"[{kind}] the weights are float16, whose range the hidden states leave; load with a dtype")


def strip_prefixes(weights: Mapping[str, mx.array], prefixes: Sequence[str]) -> dict[str, mx.array]:
    """``weights`` with every one of ``prefixes``, in order, taken off the names that have it."""
    stripped = {}
    for name, tensor in weights.items():
        for prefix in prefixes:
            name = name.removeprefix(prefix)
        stripped[name] = tensor
    return stripped
