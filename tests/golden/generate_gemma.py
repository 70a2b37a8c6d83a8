"""Reference outputs of Hugging Face's EmbeddingGemma models, small and random.

  python tests/golden/generate_gemma.py    # with torch 2.13.0 and transformers 5.24.0

Writes beside itself:
  embeddinggemma1_tiny/  a bidirectional Gemma3TextModel as a sentence-transformers folder with mean pooling, two Dense
                         layers and Normalize; window 16 in its config, so that |i - j| <= 8 is seen
  embeddinggemma2_tiny/  an EmbeddingGemma2TextModel; |i - j| <= 8 is seen
each with hidden (zeros on padding), pooled and embedding.<dimensions> (a prefix, then unit length) of four rows.
Everything is float32 and seeded: a second run gives the same bits.
"""

from __future__ import annotations

import json
import platform
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from transformers import Gemma3TextConfig, Gemma3TextModel
from transformers.models.embedding_gemma2 import EmbeddingGemma2TextConfig, EmbeddingGemma2TextModel

HERE = Path(__file__).parent
LENGTHS = (41, 23, 5, 1)


def randomize(model: torch.nn.Module, seed: int) -> None:
    """Weights that keep activations of order 1, so that an error anywhere shows in the outputs."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        if "embed" in name and parameter.ndim == 2:
            parameter.copy_(0.5 * noise)
        elif parameter.ndim >= 2:
            parameter.copy_(noise / int(np.prod(parameter.shape[1:])) ** 0.5)
        else:
            parameter.add_(0.1 * noise)


def rows(words: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids that begin with 2 and end with 1, as Gemma's tokenizer has it, and their mask."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, words, (len(LENGTHS), max(LENGTHS)), generator=generator)
    mask = (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]).long()
    for row, length in zip(ids, LENGTHS, strict=True):
        row[length - 1] = 1
        row[0] = 2
    return ids * mask, mask


def mean(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


def prefixes(embeddings: torch.Tensor, dimensions: tuple[int, ...]) -> dict[str, torch.Tensor]:
    return {f"embedding.{d}": torch.nn.functional.normalize(embeddings[:, :d], dim=-1) for d in dimensions}


def save(case: str, tensors: dict[str, torch.Tensor]) -> None:
    contiguous = {key: tensor.detach().contiguous().clone() for key, tensor in tensors.items()}
    save_file(contiguous, HERE / case / "golden.safetensors")
    versions = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }
    (HERE / case / "golden.json").write_text(json.dumps({"versions": versions}, indent=1) + "\n")


def write_json(path: Path, content: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


def first() -> None:
    case = "embeddinggemma1_tiny"
    config = Gemma3TextConfig(
        vocab_size=300,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=6,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=32,
        query_pre_attn_scalar=32,
        sliding_window=16,
        max_position_embeddings=256,
        use_bidirectional_attention=True,
        sliding_window_pattern=6,
    )
    config._attn_implementation = "eager"
    model = Gemma3TextModel(config).float().eval()
    randomize(model, 42)
    model.save_pretrained(HERE / case)

    generator = torch.Generator().manual_seed(43)
    up = torch.randn(192, 48, generator=generator) / 48**0.5
    down = torch.randn(48, 192, generator=generator) / 192**0.5
    write_json(HERE / case / "1_Pooling" / "config.json", {"word_embedding_dimension": 48, "pooling_mode": "mean"})
    for name, weight in (("2_Dense", up), ("3_Dense", down)):
        sizes = {"in_features": weight.shape[1], "out_features": weight.shape[0], "bias": False}
        identity = {"activation_function": "torch.nn.modules.linear.Identity"}
        write_json(HERE / case / name / "config.json", sizes | identity)
        save_file({"linear.weight": weight}, HERE / case / name / "model.safetensors")
    parts = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Dense", "Dense"), ("3_Dense", "Dense")]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate([*parts, ("4_Normalize", "Normalize")])
    ]
    write_json(HERE / case / "modules.json", modules)

    ids, mask = rows(config.vocab_size, 44)
    hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
    pooled = mean(hidden, mask)
    embeddings = prefixes(pooled @ up.T @ down.T, (48, 32, 16))
    save(case, {"ids": ids, "mask": mask, "hidden": hidden * mask[..., None], "pooled": pooled, **embeddings})


def second() -> None:
    case = "embeddinggemma2_tiny"
    config = EmbeddingGemma2TextConfig(
        vocab_size=300,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=7,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        global_head_dim=32,
        num_global_key_value_heads=1,
        sliding_window=8,
        sliding_window_pattern=3,
        hidden_size_per_layer_input=24,
        embedding_dim=64,
        max_position_embeddings=512,
    )
    config._attn_implementation = "eager"
    model = EmbeddingGemma2TextModel(config).float().eval()
    randomize(model, 52)
    generator = torch.Generator().manual_seed(53)
    for name, buffer in model.named_buffers():
        if name.endswith("layer_scalar"):
            buffer.copy_(0.5 + torch.rand(buffer.shape, generator=generator))
    model.save_pretrained(HERE / case)

    ids, mask = rows(config.vocab_size, 54)
    hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
    pooled = mean(hidden, mask)
    embeddings = prefixes(pooled, (64, 32, 16))
    save(case, {"ids": ids, "mask": mask, "hidden": hidden * mask[..., None], "pooled": pooled, **embeddings})


if __name__ == "__main__":
    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(True)
    with torch.no_grad():
        first()
        second()
