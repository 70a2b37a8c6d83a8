"""Sentence embeddings against sentence-transformers' recipe, and what comes in and goes out."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import mlx.core as mx
import numpy as np
import pytest

from mlx_tessl.encoders import SentenceEncoder, base
from mlx_tessl.encoders.pooling import Pooling

from .conftest import GOLDEN, add_modules

FACTS = json.loads((GOLDEN / "minilm" / "golden.json").read_text())
EXPECTED = {name: np.array(x) for name, x in mx.load(str(GOLDEN / "minilm" / "golden.safetensors")).items()}
TEXTS: list[str] = FACTS["texts"]


class TestRealWeights:
    def test_embeddings(self, minilm: SentenceEncoder) -> None:
        embeddings = minilm.encode(TEXTS)
        assert embeddings.dtype == np.float32
        assert np.abs(embeddings - EXPECTED["embedding"]).max() <= 1e-5  # seen: 2e-7
        cosines = (embeddings.astype(np.float64) * EXPECTED["embedding"]).sum(axis=1)
        assert cosines.min() >= 0.999999

    def test_ids(self, minilm: SentenceEncoder) -> None:
        sequences = [ids[mask == 1].tolist() for ids, mask in zip(EXPECTED["ids"], EXPECTED["mask"], strict=True)]
        assert minilm.tokenizer is not None
        assert minilm.tokenizer.encode(TEXTS, 256, "error").ids == sequences
        assert np.abs(minilm.encode_ids(sequences) - EXPECTED["embedding"]).max() <= 1e-5

    def test_similarity(self, minilm: SentenceEncoder) -> None:
        embeddings = minilm.encode(TEXTS)
        assert np.abs(minilm.similarity(embeddings, embeddings) - EXPECTED["scores"]).max() <= 1e-5
        assert minilm.similarity(embeddings[0], embeddings).shape == (1, 4)

    def test_cosine_ignores_length(self, minilm: SentenceEncoder) -> None:
        embeddings = minilm.encode(TEXTS, normalize_embeddings=False)
        assert np.abs(minilm.similarity(3 * embeddings, embeddings) - EXPECTED["scores"]).max() <= 1e-5

    def test_weights_are_those_of_the_golden_data(self, minilm: SentenceEncoder) -> None:
        import hashlib

        digest = hashlib.sha256((minilm.folder / "model.safetensors").read_bytes()).hexdigest()
        assert digest == FACTS["weights_sha256"]

    def test_max_seq_length_is_the_folders(self, minilm: SentenceEncoder) -> None:
        assert minilm.max_seq_length == 256
        assert minilm.embedding_dimension == 384


class TestBatches:
    def test_order_and_independence(self, minilm: SentenceEncoder) -> None:
        """Texts of many lengths, in one call and one by one."""
        texts = ["word " * (1 + 7 * i % 50) for i in range(40)]
        together = minilm.encode(texts)
        alone = np.stack([minilm.encode(text) for text in texts])
        assert np.abs(together - alone).max() <= 1e-5  # seen: 3e-7

    @pytest.mark.parametrize("batch_size", [1, 3, 64])
    def test_batch_size_changes_nothing(self, minilm: SentenceEncoder, batch_size: int) -> None:
        assert np.abs(minilm.encode(TEXTS, batch_size=batch_size) - EXPECTED["embedding"]).max() <= 1e-5

    def test_threads(self, minilm: SentenceEncoder) -> None:
        with ThreadPoolExecutor(4) as threads:
            for embeddings in threads.map(lambda _: minilm.encode(TEXTS * 20, batch_size=8), range(8)):
                assert np.abs(embeddings[:4] - EXPECTED["embedding"]).max() <= 1e-5

    def test_single_text(self, minilm: SentenceEncoder) -> None:
        embedding = minilm.encode(TEXTS[0])
        assert embedding.shape == (384,)
        assert np.abs(embedding - EXPECTED["embedding"][0]).max() <= 1e-5

    def test_mlx_result(self, minilm: SentenceEncoder) -> None:
        embeddings = minilm.encode(TEXTS, convert_to_numpy=False)
        assert isinstance(embeddings, mx.array)
        assert embeddings.shape == (4, 384)

    def test_progress_goes_to_standard_error(self, minilm: SentenceEncoder, capsys: pytest.CaptureFixture[str]) -> None:
        minilm.encode(TEXTS)
        assert capsys.readouterr() == ("", "")
        minilm.encode(TEXTS, show_progress_bar=True)
        out, err = capsys.readouterr()
        assert out == ""
        assert "4/4" in err


class TestTruncatedDimensions:
    def test_truncated_then_normalized(self, minilm: SentenceEncoder) -> None:
        short = minilm.encode(TEXTS, truncate_dim=64)
        expected = EXPECTED["embedding"][:, :64]
        expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
        assert np.abs(short - expected).max() <= 1e-5

    def test_without_normalization(self, minilm: SentenceEncoder) -> None:
        short = minilm.encode(TEXTS, truncate_dim=64, normalize_embeddings=False)
        assert np.abs(short - EXPECTED["embedding"][:, :64]).max() <= 1e-5

    def test_refused(self, minilm: SentenceEncoder) -> None:
        with pytest.raises(ValueError, match="truncate_dim is 0"):
            minilm.encode(TEXTS, truncate_dim=0)


class TestHostileInput:
    def test_nothing(self, minilm: SentenceEncoder) -> None:
        assert minilm.encode([]).shape == (0, 384)
        assert minilm.encode([], truncate_dim=8).shape == (0, 8)
        assert minilm.encode_ids([]).shape == (0, 384)

    @pytest.mark.parametrize("text", ["", " \n\t", "\u200b", "𓀀𓁐", "\x00", "a" * 300])
    def test_odd_texts_are_finite(self, minilm: SentenceEncoder, text: str) -> None:
        embedding = minilm.encode(text)
        assert np.isfinite(embedding).all()
        assert np.linalg.norm(embedding) == pytest.approx(1, abs=1e-5)

    def test_empty_sequence_is_zeros(self, minilm: SentenceEncoder) -> None:
        embeddings = minilm.encode_ids([[], [101, 102]])
        assert not embeddings[0].any()
        assert np.abs(embeddings[1] - minilm.encode("")).max() <= 1e-5

    @pytest.mark.parametrize("texts", [None, 5, [None], ["good", b"bytes"], [["nested"]]])
    def test_not_texts(self, minilm: SentenceEncoder, texts: object) -> None:
        with pytest.raises(ValueError, match=r"^\[SentenceEncoder\] .*must be"):
            minilm.encode(texts)  # type: ignore[call-overload]

    def test_ids_outside_the_vocabulary(self, minilm: SentenceEncoder) -> None:
        for wild in (-1, 30522):
            with pytest.raises(ValueError, match=r"sequence 1 has ids outside 0\.\.30521"):
                minilm.encode_ids([[101, 102], [101, wild, 102]])

    def test_batch_size(self, minilm: SentenceEncoder) -> None:
        with pytest.raises(ValueError, match="batch_size is 0"):
            minilm.encode(TEXTS, batch_size=0)


class TestLongTexts:
    text = "sea storm " * 40  # 80 words and two special tokens

    def test_refused_by_default(self, tiny: Path) -> None:
        encoder = SentenceEncoder(tiny)
        with pytest.raises(ValueError, match=r"1 of 2 texts .* text 1 has 82 tokens, and max_seq_length is 64"):
            encoder.encode(["sea", self.text])

    def test_cut_and_counted(self, tiny: Path) -> None:
        encoder = SentenceEncoder(tiny, too_long="truncate", max_seq_length=10)
        with pytest.warns(UserWarning, match="cut 2 of 3 texts to 10 tokens"):
            embeddings = encoder.encode([self.text, "sea", self.text])
        assert encoder.truncated == 2
        # What is kept is the first words between the two special tokens.
        assert np.abs(embeddings[0] - encoder.encode("sea storm " * 4)).max() <= 1e-5
        assert encoder.truncated == 0

    def test_length_of_exactly_the_limit(self, tiny: Path) -> None:
        encoder = SentenceEncoder(tiny)
        encoder.encode("sea " * 62)
        with pytest.raises(ValueError, match="65 tokens"):
            encoder.encode("sea " * 63)

    def test_ten_thousand_characters(self, minilm: SentenceEncoder) -> None:
        with pytest.raises(ValueError, match="max_seq_length is 256"):
            minilm.encode("lorem ipsum " * 900)

    def test_ids(self, tiny: Path) -> None:
        with pytest.raises(ValueError, match="sequence 0 has 65 ids"):
            SentenceEncoder(tiny).encode_ids([[5] * 65])
        encoder = SentenceEncoder(tiny, too_long="truncate")
        with pytest.warns(UserWarning, match="cut 1 of 1"):
            cut = encoder.encode_ids([[5] * 65])
        assert np.array_equal(cut, encoder.encode_ids([[5] * 64]))

    def test_limit_never_exceeds_the_positions(self, tiny: Path) -> None:
        assert SentenceEncoder(tiny, max_seq_length=1000).max_seq_length == 64
        with pytest.raises(ValueError, match="max_seq_length is -1"):
            SentenceEncoder(tiny, max_seq_length=-1)

    def test_unknown_choice(self, tiny: Path) -> None:
        with pytest.raises(ValueError, match="too_long is 'cut'"):
            SentenceEncoder(tiny, too_long="cut")  # type: ignore[arg-type]


class TestFolders:
    def test_plain_checkpoint_says_what_it_does(self, tiny: Path, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING, "mlx_tessl"):
            encoder = SentenceEncoder(tiny)
        assert "using mean pooling" in caplog.text
        assert encoder.pooling == Pooling(("mean",))

    def test_tiny_golden_pools(self, tiny: Path) -> None:
        golden = dict(mx.load(str(GOLDEN / "bert_mlm_tiny" / "golden.safetensors")))
        rows = [ids[: int(mask.sum())].tolist() for ids, mask in zip(golden["ids"], golden["mask"], strict=True)]
        for mode, name in (("mean", "mean_pooled_normed"), ("cls", "cls_normed")):
            add_modules(tiny, ("Pooling", {"pooling_mode": mode}))
            embeddings = SentenceEncoder(tiny).encode_ids(rows)
            expected = np.array(golden[name])[1:]  # row 0 has token types
            assert np.abs(embeddings[1:] - expected).max() <= 1e-5

    @pytest.mark.parametrize(
        ("config", "modes"),
        [
            ({"pooling_mode_cls_token": True}, ("cls",)),
            ({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}, ("max", "mean")),
            ({"pooling_mode_mean_tokens": False}, ("mean",)),
            ({"pooling_mode": "max"}, ("max",)),
            ({"pooling_mode": ["cls", "mean"]}, ("cls", "mean")),
        ],
    )
    def test_pooling_config(self, config: dict[str, object], modes: tuple[str, ...]) -> None:
        assert Pooling.from_config(config).modes == modes

    def test_unknown_pooling(self) -> None:
        with pytest.raises(ValueError, match="pooling mode is lasttoken"):
            Pooling.from_config({"pooling_mode_lasttoken": True})

    def test_normalize_is_the_folders_or_the_calls(self, tiny: Path) -> None:
        add_modules(tiny, ("Pooling", {"pooling_mode": "mean"}))
        raw = SentenceEncoder(tiny).encode("the sea", normalize_embeddings=False)
        assert np.linalg.norm(raw) > 1.5
        add_modules(tiny, ("Pooling", {"pooling_mode": "mean"}), ("Normalize", {}))
        unit = SentenceEncoder(tiny).encode("the sea", normalize_embeddings=False)
        assert np.abs(unit - raw / np.linalg.norm(raw)).max() <= 1e-6

    @pytest.mark.parametrize(("name", "function"), [("Identity", lambda x: x), ("Tanh", np.tanh)])
    def test_dense(self, tiny: Path, name: str, function: object) -> None:
        add_modules(tiny, ("Pooling", {"pooling_mode": "mean"}))
        plain = SentenceEncoder(tiny).encode(["the sea", "a ghost"], normalize_embeddings=False)
        config = {"in_features": 48, "out_features": 5, "bias": True, "activation_function": f"torch.nn.{name}"}
        add_modules(tiny, ("Pooling", {"pooling_mode": "mean"}), ("Dense", config))
        rng = np.random.default_rng(0)
        weight, bias = rng.standard_normal((5, 48)).astype(np.float32), rng.standard_normal(5).astype(np.float32)
        tensors = {"linear.weight": mx.array(weight), "linear.bias": mx.array(bias)}
        mx.save_safetensors(str(tiny / "2_Dense" / "model.safetensors"), tensors)
        result = SentenceEncoder(tiny).encode(["the sea", "a ghost"], normalize_embeddings=False)
        assert np.abs(result - function(plain @ weight.T + bias)).max() <= 1e-5  # type: ignore[operator]

    def test_unknown_module(self, tiny: Path) -> None:
        add_modules(tiny, ("CNN", {}))
        with pytest.raises(ValueError, match="has a module CNN"):
            SentenceEncoder(tiny)

    def test_modules_that_are_none(self, tiny: Path) -> None:
        for content in ("[]", "{", '[{"type": "x.Pooling", "path": ""}]', '{"a": 1}'):
            (tiny / "modules.json").write_text(content)
            with pytest.raises(ValueError, match=r"\[encoders\]"):
                SentenceEncoder(tiny)

    def test_similarity_by_inner_product(self, tiny: Path) -> None:
        add_modules(tiny, ("Pooling", {"pooling_mode": "mean"}), similarity_fn_name="dot")
        encoder = SentenceEncoder(tiny)
        a = encoder.encode(["the sea", "a ghost"], normalize_embeddings=False)
        assert np.abs(encoder.similarity(a, a) - a @ a.T).max() <= 1e-4
        difference = a[:, None] - a
        encoder.similarity_fn_name = "euclidean"
        assert np.abs(encoder.similarity(a, a) + np.linalg.norm(difference, axis=-1)).max() <= 1e-5
        encoder.similarity_fn_name = "manhattan"
        assert np.abs(encoder.similarity(a, a) + np.abs(difference).sum(axis=-1)).max() <= 1e-5
        encoder.similarity_fn_name = "maxsim"
        with pytest.raises(ValueError, match="similarity_fn_name is 'maxsim'"):
            encoder.similarity(a, a)


GEMMAS = pytest.mark.parametrize(
    ("case", "dimensions"), [("embeddinggemma1_tiny", (48, 32, 16)), ("embeddinggemma2_tiny", (64, 32, 16))]
)


@GEMMAS
class TestEmbeddingGemma:
    def rows(self, case: str) -> tuple[dict[str, mx.array], list[list[int]]]:
        golden = dict(mx.load(str(GOLDEN / case / "golden.safetensors")))
        return golden, [
            ids[: int(mask.sum())].tolist() for ids, mask in zip(golden["ids"], golden["mask"], strict=True)
        ]

    def test_embeddings(self, case: str, dimensions: tuple[int, ...]) -> None:
        """Of each length of a prefix, which is scaled to unit length again."""
        golden, rows = self.rows(case)
        encoder = SentenceEncoder(GOLDEN / case)
        assert encoder.embedding_dimension == dimensions[0]
        for dimension in dimensions:
            ours, theirs = encoder.encode_ids(rows, truncate_dim=dimension), np.array(golden[f"embedding.{dimension}"])
            assert ours.shape == theirs.shape
            assert np.abs(ours - theirs).max() <= 1e-5  # seen: 3e-7
            assert (ours.astype(np.float64) * theirs).sum(axis=1).min() >= 0.999999

    def test_rows_do_not_depend_on_the_batch(self, case: str, dimensions: tuple[int, ...]) -> None:
        _, rows = self.rows(case)
        encoder = SentenceEncoder(GOLDEN / case)
        together = encoder.encode_ids(rows * 3, batch_size=5)
        alone = np.concatenate([encoder.encode_ids([row]) for row in rows * 3])
        assert np.abs(together - alone).max() <= 1e-5  # seen: 3e-7

    def test_bfloat16(self, case: str, dimensions: tuple[int, ...]) -> None:
        golden, rows = self.rows(case)
        embeddings = SentenceEncoder(GOLDEN / case, dtype=mx.bfloat16).encode_ids(rows)
        assert embeddings.dtype == np.float32
        assert (embeddings * np.array(golden[f"embedding.{dimensions[0]}"])).sum(axis=1).min() >= 0.999  # seen: 0.9997


def test_streams_are_the_list(minilm: SentenceEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """In chunks of four texts, read as they are needed."""
    monkeypatch.setattr(base, "_CHUNK_ROWS", 4)
    texts = [f"{'word ' * (i % 5)}{i}" for i in range(10)]
    read = []

    def generate() -> Iterator[str]:
        for text in texts:
            read.append(text)
            yield text

    stream = minilm.encode_stream(generate())
    parts = [next(stream)]
    assert len(read) == 4
    parts += stream
    assert [len(part) for part in parts] == [4, 4, 2]
    expected = minilm.encode(texts)
    assert np.array_equal(np.concatenate(parts), expected)
    assert np.array_equal(minilm.encode(generate()), expected)


def test_chunks_are_bounded_in_characters(minilm: SentenceEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_CHUNK_SIZE", 100)
    assert [len(part) for part in minilm.encode_stream(["a" * 60] * 3 + ["b"] * 20)] == [2, 21]


class TestPrompts:
    prompts: ClassVar = {"query": "ghost ", "passage": "storm "}

    def encoder(self, tiny: Path, **settings: object) -> SentenceEncoder:
        add_modules(tiny, ("Pooling", {"pooling_mode": "mean"}), prompts=self.prompts, **settings)
        return SentenceEncoder(tiny)

    def test_by_name_and_by_text(self, tiny: Path) -> None:
        encoder = self.encoder(tiny)
        expected = encoder.encode("ghost sea")
        assert np.array_equal(encoder.encode("sea", prompt_name="query"), expected)
        assert np.array_equal(encoder.encode("sea", prompt="ghost "), expected)
        assert np.array_equal(encoder.encode_query("sea"), expected)
        assert np.array_equal(encoder.encode_document("sea"), encoder.encode("storm sea"))
        assert np.array_equal(encoder.encode_query("sea", prompt="storm "), encoder.encode("storm sea"))
        assert np.array_equal(encoder.encode_query("sea", prompt_name="passage"), encoder.encode("storm sea"))

    def test_default(self, tiny: Path) -> None:
        encoder = self.encoder(tiny, default_prompt_name="query")
        assert np.array_equal(encoder.encode("sea"), encoder.encode("sea", prompt="ghost "))
        assert not np.array_equal(encoder.encode("sea"), encoder.encode("sea", prompt=""))

    def test_unknown(self, tiny: Path) -> None:
        encoder = self.encoder(tiny)
        with pytest.raises(ValueError, match="prompt_name is 'title'; the prompts are 'query', 'passage'"):
            encoder.encode("sea", prompt_name="title")
        with pytest.raises(ValueError, match="default_prompt_name is 'title'"):
            SentenceEncoder(tiny, default_prompt_name="title")

    def test_none(self, tiny: Path) -> None:
        encoder = SentenceEncoder(tiny)
        assert np.array_equal(encoder.encode_query("sea"), encoder.encode("sea"))
        with pytest.raises(ValueError, match="there are no prompts"):
            encoder.encode("sea", prompt_name="query")

    def test_prompt_left_out_of_the_pool(self, tiny: Path) -> None:
        pooling = {"pooling_mode": "mean", "include_prompt": False}
        add_modules(tiny, ("Pooling", pooling))
        encoder = SentenceEncoder(tiny)
        ids = encoder.tokenizer.encode(["ghost sea storm"], 64, "error").ids  # type: ignore[union-attr]
        hidden = np.array(encoder.model(mx.array(ids)))[0]
        expected = hidden[2:].mean(axis=0)  # without [CLS] and "ghost"
        result = encoder.encode("sea storm", prompt="ghost ", normalize_embeddings=False)
        assert np.abs(result - expected).max() <= 1e-5


class TestTokenizerFiles:
    def test_vocabulary_alone(self, tiny: Path) -> None:
        expected = SentenceEncoder(tiny).encode("The storms, a GHOST!")
        (tiny / "tokenizer.json").unlink()
        assert np.array_equal(SentenceEncoder(tiny).encode("The storms, a GHOST!"), expected)

    def test_vocabulary_with_case(self, tiny: Path) -> None:
        (tiny / "tokenizer.json").unlink()
        (tiny / "tokenizer_config.json").write_text('{"do_lower_case": false, "unk_token": {"content": "[UNK]"}}')
        encoder = SentenceEncoder(tiny)
        assert encoder.tokenizer is not None
        assert encoder.tokenizer.encode(["GHOST ghost"], 64, "error").ids == [[2, 1, 7, 3]]

    def test_lowercase_asked_by_the_transformers_settings(self, tiny: Path) -> None:
        (tiny / "tokenizer.json").unlink()
        (tiny / "tokenizer_config.json").write_text('{"do_lower_case": false}')
        (tiny / "sentence_bert_config.json").write_text('{"max_seq_length": 32, "do_lower_case": true}')
        encoder = SentenceEncoder(tiny)
        assert encoder.max_seq_length == 32
        assert encoder.tokenizer is not None
        assert encoder.tokenizer.encode(["GHOST"], 64, "error").ids == [[2, 7, 3]]

    def test_padding_and_truncation_in_the_file_are_ignored(self, minilm: SentenceEncoder) -> None:
        asked = json.loads((minilm.folder / "tokenizer.json").read_text())
        assert asked["truncation"]["max_length"] == 128
        assert asked["padding"]["strategy"] == {"Fixed": 128}
        assert minilm.tokenizer is not None
        (ids,) = minilm.tokenizer.encode(["word " * 200], 256, "error").ids
        assert len(ids) == 202

    def test_none(self, tiny: Path) -> None:
        (tiny / "tokenizer.json").unlink()
        (tiny / "vocab.txt").unlink()
        encoder = SentenceEncoder(tiny)
        assert encoder.encode_ids([[2, 7, 3]]).shape == (1, 48)
        with pytest.raises(ValueError, match="use encode_ids"):
            encoder.encode("ghost")

    def test_damaged(self, tiny: Path) -> None:
        (tiny / "tokenizer.json").write_text("{}")
        with pytest.raises(ValueError, match=r"tokenizer in .* cannot be read"):
            SentenceEncoder(tiny)


class TestNames:
    def test_no_such_folder(self, tmp_path: Path) -> None:
        for name in (tmp_path / "absent", "./absent", "~/absent/absent/absent"):
            with pytest.raises(ValueError, match="there is no folder"):
                SentenceEncoder(name)

    def test_file(self, tiny: Path) -> None:
        with pytest.raises(ValueError, match="is a file; a checkpoint is a folder"):
            SentenceEncoder(tiny / "config.json")

    def test_hub_without_its_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
        with pytest.raises(ValueError, match="pip install huggingface_hub"):
            SentenceEncoder("someone/some-model")

    def test_hub_that_cannot_be_reached(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from types import ModuleType

        hub = ModuleType("huggingface_hub")

        def snapshot_download(*_: object, **__: object) -> str:
            raise OSError("no route\nto host")

        hub.snapshot_download = snapshot_download  # type: ignore[attr-defined]
        monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", hub)
        with pytest.raises(ValueError, match=r"the Hugging Face hub did not give it: no route$"):
            SentenceEncoder("someone/some-model")

    def test_hub(self, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from types import ModuleType

        hub = ModuleType("huggingface_hub")
        asked: list[object] = []

        def snapshot_download(hub_id: str, revision: str | None, allow_patterns: list[str]) -> str:
            asked.append((hub_id, revision, "*.safetensors" in allow_patterns))
            return str(tiny)

        hub.snapshot_download = snapshot_download  # type: ignore[attr-defined]
        monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", hub)
        assert SentenceEncoder("someone/some-model", revision="v1").folder == tiny
        assert asked == [("someone/some-model", "v1", True)]
