"""EmbeddingGemma 1 and 2 against Hugging Face's outputs; their windows to the token; what the loader refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mlx_tessl.models import embedding_gemma, embedding_gemma2, load_model
from mlx_tessl.models.checkpoint import read_weights

GOLDEN = Path(__file__).parent.parent / "golden"
FIRST, SECOND = GOLDEN / "embeddinggemma1_tiny", GOLDEN / "embeddinggemma2_tiny"
FOLDERS = pytest.mark.parametrize("folder", [FIRST, SECOND], ids=["first", "second"])


def golden(folder: Path) -> dict[str, mx.array]:
    return dict(mx.load(str(folder / "golden.safetensors")))


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


def save(folder: Path, weights: dict[str, mx.array], config: dict[str, Any]) -> Path:
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def distance(ours: mx.array, theirs: mx.array) -> float:
    """The largest difference as a fraction of the largest magnitude."""
    assert ours.shape == theirs.shape
    return float((mx.abs(ours - theirs).max() / mx.abs(theirs).max()).item())


@FOLDERS
class TestOutputs:
    def test_hidden(self, folder: Path) -> None:
        expected = golden(folder)
        hidden = load_model(folder)(expected["ids"], expected["mask"].sum(axis=1))
        assert distance(hidden * expected["mask"][..., None], expected["hidden"]) <= 1e-5  # seen: 7e-7

    def test_what_follows_a_row_does_not_matter(self, folder: Path) -> None:
        """Rows alone, without padding, and with other tokens on it."""
        expected = golden(folder)
        model, ids, lengths = load_model(folder), expected["ids"], expected["mask"].sum(axis=1)
        noise = mx.where(expected["mask"] == 1, ids, 7)
        together = model(noise, lengths)
        for row, length in enumerate(lengths.tolist()):
            alone = model(ids[row : row + 1, :length])
            assert distance(together[row : row + 1, :length], alone) <= 1e-5  # seen: 7e-7

    def test_padding_is_finite(self, folder: Path) -> None:
        expected = golden(folder)
        hidden = load_model(folder)(expected["ids"], mx.array([41, 0, 5, 1]))
        assert mx.isfinite(hidden).all().item()

    def test_bfloat16(self, folder: Path) -> None:
        """Each hidden state keeps its direction: 8 bits of mantissa through 6 or 7 layers."""
        expected = golden(folder)
        hidden = load_model(folder, dtype=mx.bfloat16)(expected["ids"], expected["mask"].sum(axis=1))
        assert hidden.dtype == mx.bfloat16
        ours, theirs = (np.array(x.astype(mx.float32)) for x in (hidden, expected["hidden"]))
        real = np.array(expected["mask"]) == 1
        ours, theirs = ours[real], theirs[real]
        cosines = (ours * theirs).sum(1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1)
        assert cosines.min() >= 0.999  # seen: 0.9995

    def test_float16_is_refused(self, folder: Path, tmp_path: Path) -> None:
        halves = {name: tensor.astype(mx.float16) for name, tensor in read_weights(folder).items()}
        save(tmp_path, halves, config_of(folder))
        with pytest.raises(ValueError, match="the weights are float16"):
            load_model(tmp_path)
        assert load_model(tmp_path, dtype=mx.float32).norm.weight.dtype == mx.float32

    def test_gradients_reach_every_parameter(self, folder: Path) -> None:
        expected = golden(folder)
        model = load_model(folder)
        lengths, mask = expected["mask"].sum(axis=1), expected["mask"][..., None]
        _, gradients = nn.value_and_grad(model, lambda m: (m(expected["ids"], lengths) * mask).square().sum())(model)
        for name, gradient in tree_flatten(gradients):
            assert mx.isfinite(gradient).all().item(), name
            assert mx.abs(gradient).max().item() > 0, name

    def test_parameters_have_checkpoint_names(self, folder: Path) -> None:
        assert dict(tree_flatten(load_model(folder).parameters())).keys() == read_weights(folder).keys()


def reach(folder: Path, tmp_path: Path, layer_type: str, window: int, tokens: int) -> np.ndarray[Any, Any]:
    """By how much each position moves when the last token changes, in a model of one layer of that type."""
    config = config_of(folder) | {"num_hidden_layers": 1, "layer_types": [layer_type], "sliding_window": window}
    config["max_position_embeddings"] = tokens
    if "per_layer_config" in config:
        config["per_layer_config"] = {}
    kept = {
        name: x for name, x in read_weights(folder).items() if name.startswith("layers.0.") or "layers." not in name
    }
    if "ple.per_layer_model_projection.weight" in kept:
        size = config["hidden_size_per_layer_input"]
        kept["ple.per_layer_model_projection.weight"] = kept["ple.per_layer_model_projection.weight"][:size]
    model = load_model(save(tmp_path, kept, config))
    ids = np.full((1, tokens), 9)
    before = np.array(model(mx.array(ids)))
    ids[0, -1] = 11
    return np.abs(np.array(model(mx.array(ids))) - before).max(axis=(0, 2))


class TestWindows:
    """Released checkpoints have window 512 in their configs: distance 256 in the first model, 512 in the second."""

    @pytest.mark.parametrize(("folder", "farthest"), [(FIRST, 256), (SECOND, 512)], ids=["first", "second"])
    def test_edge(self, folder: Path, farthest: int, tmp_path: Path) -> None:
        moved = reach(folder, tmp_path, "sliding_attention", 512, farthest + 4)[::-1]  # by distance from the last token
        assert moved[farthest] > 1e-6
        assert (moved[: farthest + 1] > 0).all()
        assert (moved[farthest + 1 :] == 0).all()

    @FOLDERS
    def test_full_layers_see_everything(self, folder: Path, tmp_path: Path) -> None:
        assert (reach(folder, tmp_path, "full_attention", 8, 100) > 0).all()


class TestSecondModelsLayouts:
    def test_multimodal(self, tmp_path: Path) -> None:
        """Text tensors under language_model, towers beside them, the text's config inside the model's."""
        text = config_of(SECOND)
        saved = {f"language_model.{name}": tensor for name, tensor in read_weights(SECOND).items()}
        for name in ("vision_tower.x.weight", "embed_vision.embedding_projection.weight", "audio_tower.y.weight"):
            saved[name] = mx.zeros((2, 2), mx.float16)
        saved["embed_audio.embedding_projection.weight"] = mx.zeros((2, 2))
        save(tmp_path, saved, {"model_type": "embedding_gemma2", "text_config": text, "vision_config": None})
        ids = golden(SECOND)["ids"]
        assert mx.array_equal(load_model(tmp_path)(ids), load_model(SECOND)(ids)).item()

    def test_widths_of_full_layers_under_their_old_names(self) -> None:
        config = config_of(SECOND) | {"global_head_dim": 32, "num_global_key_value_heads": 1}
        del config["per_layer_config"]
        args, same = (embedding_gemma2.ModelArgs.from_dict(c) for c in (config, config_of(SECOND)))
        assert [args.attention(i) for i in range(7)] == [same.attention(i) for i in range(7)]


class TestConfigs:
    def test_first_models_older_names(self) -> None:
        config = config_of(FIRST) | {"rope_theta": 2e6, "rope_local_base_freq": 3e4, "sliding_window_pattern": 3}
        del config["rope_parameters"], config["layer_types"]
        args = embedding_gemma.ModelArgs.from_dict(config)
        assert [args.attention(i).theta for i in range(6)] == [3e4, 3e4, 2e6] * 2
        assert [args.attention(i).window for i in range(6)] == [8, 8, None] * 2

    @pytest.mark.parametrize(
        ("folder", "change", "message"),
        [
            (FIRST, {"use_bidirectional_attention": False}, "use_bidirectional_attention is False"),
            (FIRST, {"attn_logit_softcapping": 50.0}, r"attn_logit_softcapping is 50\.0"),
            (FIRST, {"head_dim": 0}, "head_dim is 0"),
            (FIRST, {"num_key_value_heads": 2}, "divisible by the 2 key heads"),
            (FIRST, {"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling is"),
            (SECOND, {"layer_types": ["full_attention"]}, "layer_types has 1 entries; there are 7 layers"),
            (SECOND, {"layer_types": ["chunked"] * 7}, "layer_types is 'chunked'"),
            (SECOND, {"hidden_activation": "relu"}, "hidden_activation is 'relu'"),
            (SECOND, {"per_layer_config": {"2": {"window": 3}}}, "per_layer_config is 'window'"),
            (SECOND, {"rope_parameters": {"full_attention": {"rope_type": "linear"}}}, "rope_type is 'linear'"),
            (SECOND, {"quantization_config": {"bits": 4}}, "quantization_config is"),
        ],
    )
    def test_refused(self, folder: Path, change: dict[str, Any], message: str) -> None:
        kind = embedding_gemma if folder == FIRST else embedding_gemma2
        with pytest.raises(ValueError, match=message):
            kind.ModelArgs.from_dict(config_of(folder) | change)

    @FOLDERS
    def test_missing_size(self, folder: Path) -> None:
        kind = embedding_gemma if folder == FIRST else embedding_gemma2
        config = config_of(folder)
        del config["head_dim"]
        with pytest.raises(ValueError, match="lacks head_dim"):
            kind.ModelArgs.from_dict(config)

    @FOLDERS
    def test_no_vocabulary_head(self, folder: Path) -> None:
        with pytest.raises(ValueError, match="has no masked-LM head"):
            load_model(folder, head="masked_lm")

    @FOLDERS
    def test_too_many_tokens(self, folder: Path) -> None:
        model = load_model(folder)
        limit = model.args.max_position_embeddings
        with pytest.raises(ValueError, match=f"{limit + 1} tokens a row; the model has {limit} positions"):
            model(mx.zeros((1, limit + 1), mx.int32))

    def test_unknown_tensor(self, tmp_path: Path) -> None:
        shutil.copy(SECOND / "config.json", tmp_path)
        weights = read_weights(SECOND) | {"extra.weight": mx.zeros((2,))}
        with pytest.raises(ValueError, match=r"unknown: extra\.weight"):
            load_model(save(tmp_path, weights, config_of(SECOND)))
