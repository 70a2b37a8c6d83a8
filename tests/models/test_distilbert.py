"""DistilBERT against Hugging Face's outputs and gradients, and what its loader takes and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten

from mlx_tessl.models import distilbert, load_model
from mlx_tessl.models.checkpoint import read_weights

TINY = Path(__file__).parent.parent / "golden" / "distilbert_mlm_tiny"
CONFIG = json.loads((TINY / "config.json").read_text())
GOLDEN = dict(mx.load(str(TINY / "golden.safetensors")))
LENGTHS = GOLDEN["mask"].sum(axis=1)


def distance(ours: mx.array, theirs: mx.array) -> float:
    """The largest difference as a fraction of the largest magnitude."""
    assert ours.shape == theirs.shape
    return float((mx.abs(ours - theirs).max() / mx.abs(theirs).max()).item())


def save(folder: Path, weights: dict[str, mx.array], **changes: object) -> Path:
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    return folder


@pytest.fixture(scope="module")
def model() -> distilbert.MaskedLM:
    return load_model(TINY, head="masked_lm")


class TestOutputs:
    def test_hidden(self, model: distilbert.MaskedLM) -> None:
        hidden = model.distilbert(GOLDEN["ids"], LENGTHS)
        assert distance(hidden * GOLDEN["mask"][..., None], GOLDEN["hidden"]) <= 1e-5  # seen: 5e-7
        dense = load_model(TINY)(GOLDEN["ids"], LENGTHS)
        assert mx.array_equal(dense, hidden).item()

    def test_logits(self, model: distilbert.MaskedLM) -> None:
        logits = model(GOLDEN["ids"], LENGTHS)
        assert distance(logits * GOLDEN["mask"][..., None], GOLDEN["logits"]) <= 1e-5  # seen: 8e-7

    def test_padding_does_not_matter(self, model: distilbert.MaskedLM) -> None:
        noise = mx.where(GOLDEN["mask"] == 1, GOLDEN["ids"], 9)
        ours = model(noise, LENGTHS) * GOLDEN["mask"][..., None]
        assert distance(ours, GOLDEN["logits"]) <= 1e-5

    def test_gradients(self) -> None:
        """Of a sparse loss, for every parameter."""
        model = load_model(TINY, head="masked_lm")

        def loss(model: distilbert.MaskedLM) -> mx.array:
            weights = mx.log1p(mx.maximum(model(GOLDEN["ids"], LENGTHS), 0)) * GOLDEN["mask"][..., None]
            vectors = weights.max(axis=1)
            return (vectors * GOLDEN["loss.w"]).sum() + 0.1 * vectors.mean(axis=0).square().sum()

        value, gradients = nn.value_and_grad(model, loss)(model)
        assert abs(value.item() - GOLDEN["loss"].item()) <= 1e-4
        expected = dict(mx.load(str(TINY / "grads.safetensors")))
        found = dict(tree_flatten(gradients))
        assert {f"grad.{name}" for name in found} == expected.keys()
        for name, gradient in found.items():
            theirs = expected[f"grad.{name}"]
            scale = max(mx.abs(theirs).max().item(), 0.1)  # a key's bias changes nothing: its gradient is rounding
            assert mx.abs(gradient - theirs).max().item() / scale <= 1e-4, name  # seen: 1e-5

    def test_no_token_types(self, model: distilbert.MaskedLM) -> None:
        with pytest.raises(ValueError, match="the model has no token types"):
            model(GOLDEN["ids"], LENGTHS, mx.zeros_like(GOLDEN["ids"]))


class TestLoading:
    def same(self, folder: Path, head: str | None = "masked_lm") -> bool:
        ours, theirs = (load_model(f, head=head)(GOLDEN["ids"], LENGTHS) for f in (folder, TINY))  # type: ignore[arg-type]
        return bool(mx.array_equal(ours, theirs).item())

    def test_parameters_have_checkpoint_names(self, model: distilbert.MaskedLM) -> None:
        assert dict(tree_flatten(model.parameters())).keys() == read_weights(TINY).keys()

    def test_no_prefix(self, tmp_path: Path) -> None:
        saved = {name.removeprefix("distilbert."): tensor for name, tensor in read_weights(TINY).items()}
        assert self.same(save(tmp_path, saved))

    def test_dense_checkpoint(self, tmp_path: Path) -> None:
        saved = {n.removeprefix("distilbert."): x for n, x in read_weights(TINY).items() if n.startswith("distilbert.")}
        assert self.same(save(tmp_path, saved), head=None)
        with pytest.raises(ValueError, match=r"missing: vocab_layer_norm\.bias"):
            load_model(tmp_path, head="masked_lm")

    def test_tied_decoder_may_be_saved(self, tmp_path: Path) -> None:
        assert self.same(save(tmp_path, read_weights(TINY) | {"vocab_projector.weight": mx.zeros((400, 48))}))

    def test_untied_decoder(self, tmp_path: Path) -> None:
        saved = read_weights(TINY) | {"vocab_projector.bias": mx.zeros((400,))}
        saved["vocab_projector.weight"] = 2 * saved["distilbert.embeddings.word_embeddings.weight"]
        untied, tied = (
            load_model(f, head="masked_lm") for f in (save(tmp_path, saved, tie_word_embeddings=False), TINY)
        )
        tied.vocab_projector.bias = mx.zeros((400,))
        assert distance(untied(GOLDEN["ids"]), 2 * tied(GOLDEN["ids"])) <= 1e-6

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"activation": "mish"}, "activation is 'mish'"),
            ({"n_heads": 5}, "dim is 48; it must be divisible by the 5 attention heads"),
            ({"dim": "48"}, "dim is '48'; it must be a positive integer"),
            ({"quantization_config": {"bits": 4}}, "quantization_config is"),
        ],
    )
    def test_refused(self, change: dict[str, object], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            distilbert.ModelArgs.from_dict({**CONFIG, **change})

    def test_length_limit(self, model: distilbert.MaskedLM) -> None:
        with pytest.raises(ValueError, match="65 tokens a row; the model has 64 positions"):
            model(mx.zeros((1, 65), mx.int32))
