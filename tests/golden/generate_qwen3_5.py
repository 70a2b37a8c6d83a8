"""Reference outputs of Hugging Face's Qwen3.5 text model with random weights.

  python tests/golden/generate_qwen3_5.py    # with torch 2.13.0, transformers 5.24.0

Writes qwen35_tiny/ and qwen35_headdims/ beside itself: a checkpoint (config.json, model.safetensors), its logits,
states and greedy tokens (golden.safetensors), and for qwen35_tiny the gradients of its loss (grads.safetensors, named
grad.<parameter>). Everything is float32 and seeded. Logits of long prompts are those of the last 16 positions.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import DynamicCache, Qwen3_5ForCausalLM, Qwen3_5TextConfig

HERE = Path(__file__).parent
TINY = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
    "full_attention_interval": 4,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    },
}
# The shapes that released models have for each head.
HEADDIMS = {
    **TINY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "full_attention_interval": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "rope_parameters": {**TINY["rope_parameters"], "mrope_section": [11, 11, 10]},
}
CASES = {"qwen35_tiny": (TINY, 1000), "qwen35_headdims": (HEADDIMS, 1002)}


def random_ids(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return torch.randint(5, TINY["vocab_size"], shape, generator=torch.Generator().manual_seed(seed))


def randomize(model: torch.nn.Module, seed: int) -> None:
    """Activations of order 1, and decays from nearly none to hard: an error anywhere shows in the logits."""
    generator = torch.Generator().manual_seed(seed)

    def normal(p: torch.Tensor) -> torch.Tensor:
        return torch.randn(p.shape, generator=generator)

    with torch.no_grad():
        for name, p in sorted(model.named_parameters(), key=lambda item: item[0]):
            if name.endswith("A_log"):
                p.copy_(torch.log(0.5 + 7.5 * torch.rand(p.shape, generator=generator)))
            elif name.endswith("dt_bias"):
                p.copy_(-4.0 + 3.0 * torch.rand(p.shape, generator=generator))
            elif name.endswith("in_proj_a.weight"):
                p.copy_(0.5 * normal(p) / p.shape[1] ** 0.5)
            elif "embed" in name:
                p.copy_(0.5 * normal(p))
            elif p.ndim >= 2:
                p.copy_(normal(p) / p[0].numel() ** 0.5)
            else:
                p.add_(0.1 * normal(p))


@torch.no_grad()
def outputs(model: Qwen3_5ForCausalLM) -> dict[str, torch.Tensor]:
    def logits(ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return model(input_ids=ids, attention_mask=mask, use_cache=False).logits

    tensors = {}
    for T in (1, 3, 63, 64, 65, 130, 200):
        ids = random_ids((1, T), 100 + T)
        tensors[f"prefill{T}.ids"] = ids
        tensors[f"prefill{T}.logits"] = logits(ids) if T <= 65 else logits(ids)[:, -16:]
    lengths, T = (70, 33, 9), 70
    for side in ("right", "left"):
        mask = torch.zeros(len(lengths), T, dtype=torch.long)
        for row, n in enumerate(lengths):
            mask[row, slice(0, n) if side == "right" else slice(T - n, T)] = 1
        ids = random_ids((len(lengths), T), 7) * mask
        tensors[f"pad_{side}.ids"], tensors[f"pad_{side}.mask"] = ids, mask
        tensors[f"pad_{side}.logits"] = logits(ids, mask) * mask[..., None]
    ids = random_ids((2, 49), 11)
    cache = DynamicCache(config=model.config)
    steps = [model(input_ids=ids[:, :37], cache=cache, use_cache=True).logits[:, -1]]
    for t in range(37, 49):
        steps.append(model(input_ids=ids[:, t : t + 1], cache=cache, use_cache=True).logits[:, -1])
    kinds = model.config.layer_types
    linear, full = kinds.index("linear_attention"), kinds.index("full_attention")
    tensors["decode.ids"], tensors["decode.logits"] = ids, torch.stack(steps, 1)
    tensors["decode.recurrent_state"] = cache.get_recurrent_state(linear, state_idx=0)
    tensors["decode.conv_state"] = cache.get_conv_state(linear, state_idx=0)
    tensors["decode.keys"] = cache.layers[full].keys
    cache = DynamicCache(config=model.config)
    model(input_ids=ids[:, :20], cache=cache, use_cache=True)
    tensors["chunked.logits_last"] = model(input_ids=ids[:, 20:], cache=cache, use_cache=True).logits[:, -1]
    tokens = random_ids((1, 10), 13)
    tensors["greedy.prompt"] = tokens
    for _ in range(24):
        tokens = torch.cat([tokens, logits(tokens)[:, -1:].argmax(-1)], 1)
    return {**tensors, "greedy.tokens": tokens}


def gradients(model: Qwen3_5ForCausalLM) -> dict[str, torch.Tensor]:
    """Of the mean cross entropy of the next token, with padding and a prefix that do not count."""
    ids = random_ids((2, 75), 21)
    mask = torch.ones_like(ids)
    mask[1, 60:] = 0
    ids = ids * mask
    labels = torch.where(mask == 0, -100, ids)
    labels[0, :5] = -100
    loss = model.train()(input_ids=ids, attention_mask=mask, labels=labels, use_cache=False).loss
    loss.backward()
    found = {f"grad.{name}": p.grad for name, p in model.named_parameters()}
    return {"ids": ids, "mask": mask, "labels": labels, "loss": loss.detach().reshape(1), **found}


if __name__ == "__main__":
    torch.use_deterministic_algorithms(True)
    for case, (config, seed) in CASES.items():
        arguments = Qwen3_5TextConfig(**config)
        arguments._attn_implementation = "eager"
        model = Qwen3_5ForCausalLM(arguments).float().eval()
        randomize(model, seed)
        model.save_pretrained(HERE / case)
        files = {"golden": outputs(model)} | ({"grads": gradients(model)} if case == "qwen35_tiny" else {})
        for name, tensors in files.items():
            contiguous = {key: x.detach().contiguous().clone() for key, x in tensors.items()}
            save_file(contiguous, HERE / case / f"{name}.safetensors")
