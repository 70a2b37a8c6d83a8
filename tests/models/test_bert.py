"""BERT against Hugging Face's outputs, and what its loader takes and refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mlx_tessl.models import bert, load_model
from mlx_tessl.models.checkpoint import read_weights

TINY = Path(__file__).parent.parent / "golden" / "bert_mlm_tiny"
CONFIG = json.loads((TINY / "config.json").read_text())
GOLDEN = dict(mx.load(str(TINY / "golden.safetensors")))
LENGTHS = GOLDEN["mask"].sum(axis=1)


def distance(ours: mx.array, theirs: mx.array) -> float:
    """The largest difference as a fraction of the largest magnitude."""
    assert ours.shape == theirs.shape
    return float((mx.abs(ours - theirs).max() / mx.abs(theirs).max()).item())


def save(folder: Path, weights: dict[str, mx.array], **changes: object) -> Path:
    """A checkpoint folder with the tiny model's config, changed."""
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    return folder


def weights() -> dict[str, mx.array]:
    return read_weights(TINY)


@pytest.fixture(scope="module")
def model() -> bert.MaskedLM:
    return load_model(TINY, head="masked_lm")


class TestOutputs:
    def test_hidden(self, model: bert.MaskedLM) -> None:
        hidden = model.bert(GOLDEN["ids"], LENGTHS, GOLDEN["token_type_ids"])
        assert distance(hidden * GOLDEN["mask"][..., None], GOLDEN["hidden"]) <= 1e-5  # seen: 5e-7

    def test_logits(self, model: bert.MaskedLM) -> None:
        logits = model(GOLDEN["ids"], LENGTHS, GOLDEN["token_type_ids"])
        assert distance(logits * GOLDEN["mask"][..., None], GOLDEN["logits"]) <= 1e-5  # seen: 7e-7

    def test_missing_token_types_are_zeros(self, model: bert.MaskedLM) -> None:
        ids = GOLDEN["ids"][1:]  # the rows whose types are all zero
        hidden = model.bert(ids, LENGTHS[1:])
        assert distance(hidden * GOLDEN["mask"][1:, :, None], GOLDEN["hidden"][1:]) <= 1e-5

    def test_token_types_matter(self, model: bert.MaskedLM) -> None:
        assert distance(model.bert(GOLDEN["ids"][:1])[:, :, :], GOLDEN["hidden"][:1]) > 1e-2

    def test_dense_model_is_the_same_encoder(self, model: bert.MaskedLM) -> None:
        dense = load_model(TINY)
        assert mx.array_equal(dense(GOLDEN["ids"], LENGTHS), model.bert(GOLDEN["ids"], LENGTHS)).item()

    @pytest.mark.parametrize(("dtype", "bound"), [(mx.float16, 5e-3), (mx.bfloat16, 4e-2)])  # seen: 1e-3, 9e-3
    def test_half_precision(self, dtype: mx.Dtype, bound: float, tmp_path: Path) -> None:
        half = load_model(save(tmp_path, {name: tensor.astype(dtype) for name, tensor in weights().items()}))
        hidden = half(GOLDEN["ids"], LENGTHS, GOLDEN["token_type_ids"])
        assert hidden.dtype == dtype
        assert distance(hidden.astype(mx.float32) * GOLDEN["mask"][..., None], GOLDEN["hidden"]) <= bound

    def test_compiled(self, model: bert.MaskedLM) -> None:
        compiled = mx.compile(lambda ids, lengths: model.bert(ids, lengths))
        assert distance(compiled(GOLDEN["ids"], LENGTHS), model.bert(GOLDEN["ids"], LENGTHS)) <= 1e-6


class TestPadding:
    def test_row_alone(self, model: bert.MaskedLM) -> None:
        together = model.bert(GOLDEN["ids"], LENGTHS)
        for row, length in enumerate(LENGTHS.tolist()):
            alone = model.bert(GOLDEN["ids"][row : row + 1, :length])
            assert distance(together[row : row + 1, :length], alone) <= 1e-6  # seen: 4e-7

    def test_what_stands_in_padding(self, model: bert.MaskedLM) -> None:
        other = mx.where(GOLDEN["mask"] == 1, GOLDEN["ids"], 7)
        real = GOLDEN["mask"][..., None] == 1
        first, second = (mx.where(real, model.bert(ids, LENGTHS), 0) for ids in (GOLDEN["ids"], other))
        assert mx.array_equal(first, second).item()

    def test_row_of_padding_alone(self, model: bert.MaskedLM) -> None:
        hidden = model.bert(GOLDEN["ids"], mx.array([33, 0, 7, 2]))
        assert mx.isfinite(hidden).all().item()


class TestTraining:
    def test_gradients(self) -> None:
        model = load_model(TINY, head="masked_lm")
        expected = dict(mx.load(str(TINY / "grads.safetensors")))

        def loss(model: bert.MaskedLM) -> mx.array:
            logits = model(GOLDEN["ids"], LENGTHS, GOLDEN["token_type_ids"])
            vectors = (mx.log1p(mx.maximum(logits, 0)) * GOLDEN["mask"][..., None]).max(axis=1)
            return (vectors * GOLDEN["loss.w"]).sum() + 0.1 * mx.square(vectors.mean(axis=0)).sum()

        value, gradients = nn.value_and_grad(model, loss)(model)
        assert value.item() == pytest.approx(GOLDEN["loss"].item(), rel=1e-5)
        ours = {f"grad.{name}": gradient for name, gradient in tree_flatten(gradients)}
        assert ours.keys() == expected.keys()
        # The gradient of a key's bias is zero in exact arithmetic: a softmax does not see what all its scores share.
        for name in sorted(name for name in ours if not name.endswith("key.bias")):
            assert distance(ours[name], expected[name]) <= 1e-4, name  # seen: 2e-5

    def test_replaced_parameters_are_used(self) -> None:
        model = load_model(TINY)
        before = model(GOLDEN["ids"])
        query = model.layers[0].attention.self.query
        query.weight = query.weight * 2
        assert distance(model(GOLDEN["ids"]), before) > 1e-2
        query.weight = query.weight / 2
        assert distance(model(GOLDEN["ids"]), before) <= 1e-6

    def test_parameters_have_checkpoint_names(self) -> None:
        names = dict(tree_flatten(load_model(TINY, head="masked_lm").parameters()))
        assert names.keys() == weights().keys()


class TestLoading:
    def same(self, folder: Path) -> bool:
        ours, theirs = (load_model(f, head="masked_lm")(GOLDEN["ids"], LENGTHS) for f in (folder, TINY))
        return bool(mx.array_equal(ours, theirs).item())

    def test_old_norm_names(self, tmp_path: Path) -> None:
        old = {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
            for name, tensor in weights().items()
        }
        assert old.keys() != weights().keys()
        assert self.same(save(tmp_path, old))

    def test_no_prefix(self, tmp_path: Path) -> None:
        assert self.same(save(tmp_path, {name.removeprefix("bert."): tensor for name, tensor in weights().items()}))

    def test_tied_decoder_may_be_saved(self, tmp_path: Path) -> None:
        saved = weights()
        saved["cls.predictions.decoder.weight"] = mx.zeros_like(saved["bert.embeddings.word_embeddings.weight"])
        assert self.same(save(tmp_path, saved))

    def test_decoder_bias_under_its_other_name(self, tmp_path: Path) -> None:
        saved = weights()
        saved["cls.predictions.decoder.bias"] = saved.pop("cls.predictions.bias")
        assert self.same(save(tmp_path, saved))

    def test_untied_decoder(self, tmp_path: Path) -> None:
        saved = weights()
        saved["cls.predictions.decoder.weight"] = 2 * saved["bert.embeddings.word_embeddings.weight"]
        folder = save(tmp_path, {**saved, "cls.predictions.bias": mx.zeros((400,))}, tie_word_embeddings=False)
        untied, tied = (load_model(f, head="masked_lm") for f in (folder, TINY))
        tied.cls.predictions.bias = mx.zeros((400,))
        assert distance(untied(GOLDEN["ids"]), 2 * tied(GOLDEN["ids"])) <= 1e-6

    def test_heads_and_buffers_are_ignored(self, tmp_path: Path) -> None:
        saved = weights()
        saved["bert.embeddings.position_ids"] = mx.arange(64)[None]
        saved["bert.pooler.dense.weight"] = mx.zeros((48, 48))
        saved["bert.pooler.dense.bias"] = mx.zeros((48,))
        saved["cls.seq_relationship.weight"] = mx.zeros((2, 48))
        assert self.same(save(tmp_path, saved))

    def test_unknown_missing_and_misshapen_are_listed(self, tmp_path: Path) -> None:
        saved = weights()
        del saved["bert.encoder.layer.1.output.dense.bias"]
        saved["bert.encoder.layer.3.output.dense.bias"] = mx.zeros((48,))
        saved["classifier.weight"] = mx.zeros((2, 48))
        saved["bert.embeddings.LayerNorm.bias"] = mx.zeros((47,))
        with pytest.raises(ValueError, match="do not fit") as raised:
            load_model(save(tmp_path, saved), head="masked_lm")
        message = str(raised.value)
        assert "missing: bert.encoder.layer.1.output.dense.bias" in message
        assert "unknown: bert.classifier.weight, bert.encoder.layer.3.output.dense.bias" in message
        assert "bert.embeddings.LayerNorm.bias is (47,), not (48,)" in message

    def test_dense_checkpoint_has_no_vocabulary_head(self, tmp_path: Path) -> None:
        dense = {name: tensor for name, tensor in weights().items() if name.startswith("bert.")}
        load_model(save(tmp_path, dense))
        with pytest.raises(ValueError, match=r"missing: cls\.predictions\.bias"):
            load_model(tmp_path, head="masked_lm")

    def test_shards(self, tmp_path: Path) -> None:
        shutil.copy(TINY / "config.json", tmp_path)
        names = sorted(weights())
        shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
        for shard, its in shards.items():
            mx.save_safetensors(str(tmp_path / shard), {name: weights()[name] for name in its})
        index = {"weight_map": {name: shard for shard, its in shards.items() for name in its}}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
        assert self.same(tmp_path)
        (tmp_path / "b.safetensors").unlink()
        with pytest.raises(ValueError, match=r"lacks the shards b\.safetensors"):
            load_model(tmp_path)

    def test_damaged_weights(self, tmp_path: Path) -> None:
        shutil.copy(TINY / "config.json", tmp_path)
        (tmp_path / "model.safetensors").write_bytes((TINY / "model.safetensors").read_bytes()[:1000])
        with pytest.raises(ValueError, match="cannot be read"):
            load_model(tmp_path)

    def test_no_weights(self, tmp_path: Path) -> None:
        shutil.copy(TINY / "config.json", tmp_path)
        (tmp_path / "pytorch_model.bin").touch()
        with pytest.raises(ValueError, match=r"convert pytorch_model\.bin"):
            load_model(tmp_path)

    def test_not_a_checkpoint(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"no config\.json"):
            load_model(tmp_path)
        (tmp_path / "config.json").write_text("[1]")
        with pytest.raises(ValueError, match="must be an object"):
            load_model(tmp_path)
        (tmp_path / "config.json").write_text('{"model_type": "t5"}')
        with pytest.raises(ValueError, match=r"model_type of .* is 't5'"):
            load_model(tmp_path)


class TestConfig:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
            ({"is_decoder": True}, "is_decoder is True"),
            ({"add_cross_attention": True}, "add_cross_attention is True"),
            ({"hidden_act": "mish"}, "hidden_act is 'mish'; it must be one of gelu"),
            ({"num_attention_heads": 5}, "divisible by the 5 attention heads"),
            ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
            ({"vocab_size": "400"}, "vocab_size is '400'"),
            ({"quantization_config": {"bits": 4}}, "quantization_config is"),
            ({"pruned_heads": {"0": [1]}}, "pruned_heads is"),
        ],
    )
    def test_refused(self, change: dict[str, object], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            bert.ModelArgs.from_dict({**CONFIG, **change})

    def test_missing_size(self) -> None:
        with pytest.raises(ValueError, match="lacks hidden_size, intermediate_size"):
            bert.ModelArgs.from_dict({k: v for k, v in CONFIG.items() if k not in ("hidden_size", "intermediate_size")})

    @pytest.mark.parametrize(
        ("name", "activation"),
        [("gelu", nn.gelu), ("gelu_new", nn.gelu_approx), ("relu", nn.relu), ("silu", nn.silu)],
    )
    def test_activation(self, name: str, activation: nn.Module) -> None:
        intermediate = bert.Intermediate(bert.ModelArgs.from_dict({**CONFIG, "hidden_act": name}))
        x = mx.random.normal((5, 48))
        dense = intermediate.dense
        assert distance(intermediate(x), activation(x @ dense.weight.T + dense.bias)) <= 1e-5


class TestLengthLimit:
    def test_all_positions_fit(self, model: bert.MaskedLM) -> None:
        assert model.bert(mx.zeros((1, 64), mx.int32)).shape == (1, 64, 48)

    def test_one_too_many(self, model: bert.MaskedLM) -> None:
        with pytest.raises(ValueError, match="65 tokens a row; the model has 64 positions"):
            model.bert(mx.zeros((1, 65), mx.int32))

    def test_not_a_batch(self, model: bert.MaskedLM) -> None:
        with pytest.raises(ValueError, match=r"it must be \[B, T\]"):
            model.bert(mx.zeros((5,), mx.int32))


def test_fused_projections_share_memory_with_the_parameters() -> None:
    attention = load_model(TINY).layers[0].attention.self
    fused = attention._joined.valid(attention.projections)
    assert fused is not None
    stacked = mx.concatenate([attention.query.weight, attention.key.weight, attention.value.weight])
    assert mx.array_equal(fused.weight, stacked).item()
    view, owner = np.asarray(memoryview(attention.key.weight)), np.asarray(memoryview(fused.weight))
    assert np.shares_memory(view, owner)
