"""mlx-lm with our models: what it loads, and what it goes back to."""

from __future__ import annotations

import json
import shutil
import sys
from importlib import import_module
from pathlib import Path
from threading import Event, Thread

import mlx.core as mx
import mlx.nn as nn
import pytest

import mlx_tessl as mt
from mlx_tessl.models import qwen3_5

from .checkpoints import GOLDEN, write_checkpoint


def test_load(checkpoint: Path) -> None:
    model, tokenizer = mt.lm.load(checkpoint)
    assert isinstance(model, qwen3_5.Model)
    assert not model.training
    data = mx.load(str(GOLDEN / "qwen35_tiny" / "golden.safetensors"))
    expected = data["prefill65.logits"]
    assert mx.abs(model(data["prefill65.ids"]) - expected).max() <= 2e-5 * mx.abs(expected).max()
    assert tokenizer.decode(tokenizer.encode("héllo")) == "héllo"


def test_patched_holds_as_long_as_it_says(checkpoint: Path) -> None:
    import mlx_lm.utils

    theirs = mlx_lm.utils._get_classes
    with mt.lm.patched() as count:
        assert count >= 2  # where it is defined, and bound as a default argument
        assert isinstance(mlx_lm.load(str(checkpoint))[0], qwen3_5.Model)
        with mt.lm.patched() as again:
            assert again == 0
        assert isinstance(mlx_lm.utils.load_model(checkpoint)[0], qwen3_5.Model)
    assert mlx_lm.utils._get_classes is theirs
    assert theirs in mlx_lm.utils.load_model.__defaults__
    with pytest.raises(ValueError, match="qwen3_5_text"):
        mlx_lm.load(str(checkpoint))


def test_modules_that_import_it_by_name_are_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    utils, consumer = import_module("mlx_lm.utils"), import_module("mlx_lm.sample_utils")
    theirs = utils._get_classes
    monkeypatch.setattr(consumer, "chosen", theirs, raising=False)
    with mt.lm.patched():
        assert consumer.chosen is not theirs
        monkeypatch.setattr(consumer, "later", utils._get_classes, raising=False)
    assert consumer.chosen is theirs
    assert consumer.later is theirs


def test_other_models_stay_theirs() -> None:
    import mlx_lm.utils

    with mt.lm.patched():
        model_class, _ = mlx_lm.utils._get_classes({"model_type": "llama"})
    assert model_class.__module__ == "mlx_lm.models.llama"


def test_after_an_error_all_is_as_before() -> None:
    import mlx_lm.utils

    theirs = mlx_lm.utils._get_classes
    with pytest.raises(KeyError), mt.lm.patched():
        raise KeyError
    assert mlx_lm.utils._get_classes is theirs


def test_unknown_weights_are_named(checkpoint: Path, tmp_path: Path) -> None:
    weights = dict(mx.load(str(checkpoint / "model.safetensors")))  # type: ignore[arg-type]
    folder = write_checkpoint(tmp_path / "strange")
    weights["model.layers.0.linear_attn.surprise.weight"] = mx.zeros((4,))
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    with pytest.raises(ValueError, match=r"linear_attn\.surprise\.weight"):
        mt.lm.load(folder)


@pytest.mark.parametrize(("mode", "bits", "group_size"), [("affine", 4, 64), ("affine", 8, 32), ("mxfp4", 4, 32)])
def test_quantized_checkpoints(checkpoint: Path, tmp_path: Path, mode: str, bits: int, group_size: int) -> None:
    """As mlx-community stores them: a multimodal layout, some layers in other formats, vision left in."""
    from mlx.utils import tree_flatten

    model, _ = mt.lm.load(checkpoint)
    apart = "language_model.model.layers.0.mlp.down_proj"
    other = {"group_size": 32, "bits": 8, "mode": "affine"}

    def format_of(path: str, module: nn.Module) -> bool | dict[str, object]:
        return other if path == apart else hasattr(module, "to_quantized") and module.weight.shape[-1] % group_size == 0

    nn.quantize(model, group_size, bits, mode=mode, class_predicate=format_of)
    weights = dict(tree_flatten(model.parameters()))
    folder = write_checkpoint(tmp_path / "packed")
    mx.save_safetensors(str(folder / "model.safetensors"), {**weights, "vision_tower.norm.weight": mx.zeros((4,))})
    text = json.loads((folder / "config.json").read_text())
    quantization = {"group_size": group_size, "bits": bits, "mode": mode, apart: other}
    config = {"model_type": "qwen3_5", "text_config": text, "vision_config": {}, "quantization": quantization}
    (folder / "config.json").write_text(json.dumps(config))
    again, _ = mt.lm.load(folder)
    ids = mx.arange(5, 45)[None]
    assert mx.array_equal(again(ids), model(ids)) or mx.allclose(again(ids), model(ids), atol=1e-4)
    assert again.layers[0].mlp.down_proj.bits == 8


def test_without_mlx_lm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlx_lm", None)
    monkeypatch.delitem(sys.modules, "mlx_lm.utils", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'mlx-tessl\[lm\]'"), mt.lm.patched():
        pass


def test_patched_holds_until_the_last_thread_leaves() -> None:
    import mlx_lm.utils

    theirs = mlx_lm.utils._get_classes
    entered, left = Event(), Event()

    def first() -> None:
        with mt.lm.patched():
            entered.set()
            left.wait(10)

    thread = Thread(target=first)
    thread.start()
    entered.wait(10)
    with mt.lm.patched():
        left.set()
        thread.join()
        assert mlx_lm.utils._get_classes is not theirs
    assert mlx_lm.utils._get_classes is theirs


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("model.safetensors", b"", "cannot be loaded: "),
        ("model.safetensors", b"\xff" * 5000, "cannot be loaded: "),
        ("config.json", b"{", "is not JSON"),
        ("config.json", b"[]", "holds a JSON list; it must be an object"),
        ("config.json", b"{}", "config.json has no model_type"),
    ],
)
def test_broken_checkpoints(checkpoint: Path, tmp_path: Path, file: str, content: bytes, message: str) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(checkpoint, folder)
    (folder / file).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        mt.lm.load(str(folder))


def test_a_checkpoint_that_was_cut_off(checkpoint: Path, tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(checkpoint, folder)
    weights = next(folder.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ValueError, match="cannot be loaded: "):
        mt.lm.load(str(folder))


@pytest.mark.parametrize("name", ["/nowhere/at all", "./nothing", "a b"])
def test_no_checkpoint(name: str) -> None:
    with pytest.raises(FileNotFoundError, match=r"^\[mlx_tessl.lm.load\] there is no folder"):
        mt.lm.load(name)
