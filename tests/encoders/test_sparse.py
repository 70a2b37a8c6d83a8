"""Sparse vectors against Hugging Face's BertForMaskedLM, and what comes in and goes out."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mlx_tessl.encoders import SparseEncoder, SparseVector, SparseVectors
from mlx_tessl.encoders.sparse import SpladePooling

from .conftest import GOLDEN, add_modules

FACTS = json.loads((GOLDEN / "splade" / "golden.json").read_text())
EXPECTED = {name: np.array(x) for name, x in mx.load(str(GOLDEN / "splade" / "golden.safetensors")).items()}
TEXTS: list[str] = FACTS["texts"]
each_model = pytest.mark.parametrize("case", ["bert_mlm_tiny", "distilbert_mlm_tiny"])


def golden(case: str) -> tuple[dict[str, np.ndarray], list[list[int]]]:
    """Reference tensors and the rows of ids, without those that have token types, which encoders do not take."""
    tensors = {name: np.array(x) for name, x in mx.load(str(GOLDEN / case / "golden.safetensors")).items()}
    if "token_type_ids" in tensors:
        plain = ~tensors["token_type_ids"].any(axis=1)
        tensors = {name: x[plain] for name, x in tensors.items() if len(x) == len(plain)}
    return tensors, [ids[mask == 1].tolist() for ids, mask in zip(tensors["ids"], tensors["mask"], strict=True)]


class TestRealWeights:
    def test_vectors(self, splade: SparseEncoder) -> None:
        vectors = splade.encode(TEXTS)
        assert vectors.shape == (4, 30522)
        assert np.array_equal(np.diff(vectors.indptr), EXPECTED["counts"])
        assert np.array_equal(vectors.indices, EXPECTED["indices"])
        assert np.abs(vectors.values - EXPECTED["values"]).max() <= 1e-4  # seen: 5e-6

    def test_scores(self, splade: SparseEncoder) -> None:
        vectors = splade.encode(TEXTS)
        assert np.abs(splade.similarity(vectors, vectors) - EXPECTED["scores"]).max() <= 1e-3  # seen: 2e-5
        one = splade.similarity(vectors[0], vectors)
        assert np.abs(one - EXPECTED["scores"][:1]).max() <= 1e-3
        assert np.abs(splade.similarity(vectors, vectors[0]) - one.T).max() <= 1e-6

    def test_words(self, splade: SparseEncoder) -> None:
        words = splade.decode(splade.encode(TEXTS[0]))
        assert [word for word, _ in words[:3]] == ["northern", "lights", "causes"]
        weights = [weight for _, weight in words]
        assert weights == sorted(weights, reverse=True)
        assert len(words) == EXPECTED["counts"][0]
        assert [len(row) for row in splade.decode(splade.encode(TEXTS), 5)] == [5, 5, 5, 5]

    def test_weights_are_those_of_the_golden_data(self, splade: SparseEncoder) -> None:
        import hashlib

        digest = hashlib.sha256((splade.folder / "model.safetensors").read_bytes()).hexdigest()
        assert digest == FACTS["weights_sha256"]


class TestTiny:
    @each_model
    def test_golden_vectors(self, case: str) -> None:
        tensors, rows = golden(case)
        vectors = SparseEncoder(GOLDEN / case).encode_ids(rows)
        assert np.abs(vectors.to_dense() - tensors["sparse"]).max() <= 1e-4  # seen: 2e-6
        assert np.array_equal(np.diff(vectors.indptr), (tensors["sparse"] > 0).sum(axis=1))

    @each_model
    @pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
    @pytest.mark.parametrize("strategy", ["max", "sum"])
    def test_poolings(self, case: str, strategy: str, activation: str, tmp_path: Path) -> None:
        tensors, rows = golden(case)
        folder = Path(shutil.copytree(GOLDEN / case, tmp_path / case))
        add_modules(folder, ("SpladePooling", {"pooling_strategy": strategy, "activation_function": activation}))
        vectors = SparseEncoder(folder).encode_ids(rows).to_dense()
        weights = np.log1p(np.maximum(tensors["logits"], 0))
        weights = np.log1p(weights) if activation == "log1p_relu" else weights
        weights *= tensors["mask"][..., None]
        expected = weights.max(axis=1) if strategy == "max" else weights.sum(axis=1)
        assert np.abs(vectors - expected).max() <= 1e-4

    def test_logits_are_not_held(self, splade: SparseEncoder) -> None:
        """They would be 30,522 floats for each of 2,400 tokens: 293 MB."""
        rows = [[101] + [2003] * 298 + [102]] * 8
        splade.encode_ids(rows[:1])
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        splade.encode_ids(rows, batch_size=8)
        assert mx.get_peak_memory() - before <= 60e6  # seen: 34e6, two batches of activations

    def test_unknown_pooling(self) -> None:
        for config in ({"pooling_strategy": "mean"}, {"activation_function": "gelu"}):
            with pytest.raises(ValueError, match=r"^\[pooling\]"):
                SpladePooling.from_config(config)

    def test_unknown_module(self, tiny: Path) -> None:
        add_modules(tiny, ("Pooling", {"pooling_mode": "mean"}))
        with pytest.raises(ValueError, match="has a module Pooling"):
            SparseEncoder(tiny)

    def test_without_a_vocabulary_head(self, tiny: Path) -> None:
        weights = dict(mx.load(str(tiny / "model.safetensors")))
        body = {name: tensor for name, tensor in weights.items() if name.startswith("bert.")}
        mx.save_safetensors(str(tiny / "model.safetensors"), body)
        with pytest.raises(ValueError, match=r"missing: cls\.predictions\.bias"):
            SparseEncoder(tiny)


class TestTopK:
    def test_largest_are_kept(self, splade: SparseEncoder) -> None:
        full, cut = splade.encode(TEXTS), splade.encode(TEXTS, max_active_dims=10)
        assert np.diff(cut.indptr).tolist() == [10, 10, 10, 10]
        for whole, part in zip(full, cut, strict=True):
            assert np.array_equal(np.sort(part.values), np.sort(whole.values)[-10:])
            assert np.array_equal(part.values, whole.to_dense()[part.indices])
            assert (np.diff(part.indices) > 0).all()

    def test_above_a_weight(self, splade: SparseEncoder) -> None:
        full, cut = splade.encode(TEXTS), splade.encode(TEXTS, min_weight=0.5)
        assert np.array_equal(cut.to_dense(), np.where(full.to_dense() > 0.5, full.to_dense(), 0))
        assert 0 < len(cut.values) < len(full.values)
        with pytest.raises(ValueError, match="min_weight is -1"):
            splade.encode(TEXTS, min_weight=-1)

    def test_of_the_encoder(self, tiny: Path) -> None:
        encoder = SparseEncoder(tiny, max_active_dims=3)
        assert len(encoder.encode("the sea")) == 3
        assert len(encoder.encode("the sea", max_active_dims=7)) == 7

    def test_refused(self, splade: SparseEncoder) -> None:
        with pytest.raises(ValueError, match="max_active_dims is 0"):
            splade.encode(TEXTS, max_active_dims=0)
        with pytest.raises(ValueError, match="top_k is 0"):
            splade.decode(splade.encode("hi"), 0)


class TestBatches:
    def test_order_and_independence(self, splade: SparseEncoder) -> None:
        texts = ["ghost king storm sea " * (1 + 7 * i % 13) + TEXTS[i % 4] for i in range(20)]
        together = splade.encode(texts).to_dense()
        alone = np.stack([splade.encode(text).to_dense() for text in texts])
        assert np.abs(together - alone).max() <= 1e-5  # seen: 2e-6

    def test_single_text(self, splade: SparseEncoder) -> None:
        vector = splade.encode("hi")
        assert isinstance(vector, SparseVector)
        assert len(vector) == EXPECTED["counts"][3]


class TestHostileInput:
    def test_nothing(self, splade: SparseEncoder) -> None:
        assert splade.encode([]).shape == (0, 30522)
        assert splade.decode(splade.encode([])) == []
        assert splade.similarity(splade.encode([]), splade.encode(TEXTS)).shape == (0, 4)
        assert splade.similarity(splade.encode(TEXTS), splade.encode([])).shape == (4, 0)

    def test_empty_sequence_is_an_empty_vector(self, tiny: Path) -> None:
        for strategy in ("max", "sum"):
            add_modules(tiny, ("SpladePooling", {"pooling_strategy": strategy}))
            vectors = SparseEncoder(tiny).encode_ids([[], [2, 7, 3]])
            assert len(vectors[0]) == 0
            assert len(vectors[1]) > 0

    @pytest.mark.parametrize("text", ["", "\x00", "𓀀", "a" * 300])
    def test_odd_texts(self, splade: SparseEncoder, text: str) -> None:
        vector = splade.encode(text)
        assert (vector.values > 0).all()
        assert np.isfinite(vector.values).all()

    @pytest.mark.parametrize("texts", [None, [3], [["nested"]]])
    def test_not_texts(self, splade: SparseEncoder, texts: object) -> None:
        with pytest.raises(ValueError, match=r"^\[SparseEncoder\] .*must be"):
            splade.encode(texts)  # type: ignore[call-overload]

    def test_too_long(self, splade: SparseEncoder) -> None:
        with pytest.raises(ValueError, match="max_seq_length is 512"):
            splade.encode("lorem ipsum " * 900)

    def test_words_without_a_tokenizer(self, tiny: Path) -> None:
        for name in ("tokenizer.json", "vocab.txt"):
            (tiny / name).unlink()
        encoder = SparseEncoder(tiny)
        with pytest.raises(ValueError, match="to name words with"):
            encoder.decode(encoder.encode_ids([[2, 7, 3]]))


class TestSparseVectors:
    dense = np.array([[0, 2, 0, 1], [0, 0, 0, 0], [3, 0, 0, 0.5]], np.float32)

    def vectors(self) -> SparseVectors:
        return SparseVectors.from_rows([SparseVector.from_dense(row) for row in self.dense], 4)

    def test_round_trip(self) -> None:
        vectors = self.vectors()
        assert vectors.shape == (3, 4)
        assert np.array_equal(vectors.to_dense(), self.dense)
        assert [len(row) for row in vectors] == [2, 0, 2]
        assert np.array_equal(vectors[-1].to_dense(), self.dense[-1])
        with pytest.raises(IndexError):
            vectors[3]
        assert np.array_equal(vectors[::-2].to_dense(), self.dense[::-2])
        assert vectors[5:].shape == (0, 4)

    def test_dot(self) -> None:
        query = SparseVector.from_dense(np.array([1, 1, 1, 2], np.float32))
        assert self.vectors().dot(query).tolist() == [4, 0, 4]
        with pytest.raises(ValueError, match="the rows have 4"):
            self.vectors().dot(SparseVector.from_dense(np.ones(5, np.float32)))

    def test_saved_as_scipy_reads_it(self) -> None:
        file = io.BytesIO()
        self.vectors().save(file)
        file.seek(0)
        saved = np.load(file)
        assert saved["format"].item() == b"csr"
        assert saved["shape"].tolist() == [3, 4]
        dense = np.zeros((3, 4))
        for row in range(3):
            part = slice(saved["indptr"][row], saved["indptr"][row + 1])
            dense[row, saved["indices"][part]] = saved["data"][part]
        assert np.array_equal(dense, self.dense)
