"""Encoders of the demo's packages, and of a tiny checkpoint made here."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tokenizers.implementations import BertWordPieceTokenizer

from mlx_tessl.cli.demo import find_packages
from mlx_tessl.encoders import SentenceEncoder, SparseEncoder

GOLDEN = Path(__file__).parent.parent / "golden"
WORDS = [
    "the",
    "a",
    "ghost",
    "of",
    "king",
    "sea",
    "storm",
    "love",
    "death",
    "night",
    "##s",
    "##ing",
    "ring",
    "moon",
    ",",
    ".",
    "!",
]


@pytest.fixture(scope="session")
def minilm() -> SentenceEncoder:
    return SentenceEncoder(find_packages()[0])


@pytest.fixture(scope="session")
def splade() -> SparseEncoder:
    return SparseEncoder(find_packages()[1])


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A plain checkpoint folder of 400 words and 64 positions, with a tokenizer.json."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(GOLDEN / "bert_mlm_tiny" / name, folder)
    write_vocabulary(folder)
    BertWordPieceTokenizer(str(folder / "vocab.txt")).save(str(folder / "tokenizer.json"))
    return folder


def write_vocabulary(folder: Path) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    words += [f"[unused{i}]" for i in range(400 - len(words))]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")


def add_modules(folder: Path, *modules: tuple[str, dict[str, object]], **settings: object) -> None:
    """Makes a sentence-transformers folder of a plain one."""
    entries = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
    for i, (kind, config) in enumerate(modules, 1):
        path = f"{i}_{kind}"
        entries.append({"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"})
        (folder / path).mkdir(exist_ok=True)
        (folder / path / "config.json").write_text(json.dumps(config))
    (folder / "modules.json").write_text(json.dumps(entries))
    if settings:
        (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
