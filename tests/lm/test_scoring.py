"""Questions over one prefix, against each of them computed whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

import mlx_tessl as mt

PREFIX = [int(token) for token in np.random.default_rng(0).integers(5, 250, 83)]
QUESTIONS = [[7, 8, 9], [20], [30, 31, 32, 33, 34, 35, 36], [40, 41]]
CHOICES = [65, 66, 67, 300]


@pytest.fixture(scope="module")
def loaded(checkpoint: Path) -> tuple[Any, Any]:
    model, tokenizer = mt.lm.load(checkpoint)
    return model, tokenizer


def expected(model: Any, prefix: list[int]) -> np.ndarray:
    rows = []
    for question in QUESTIONS:
        logits = model(mx.array([prefix + question]))[0, -1, mx.array(CHOICES)]
        rows.append(np.array(logits - mx.logsumexp(logits)))
    return np.stack(rows)


@pytest.mark.parametrize("prefix", [PREFIX, []], ids=["prefix", "nothing"])
@pytest.mark.parametrize("options", [{}, {"batch_size": 3, "prefill_step_size": 20}], ids=["whole", "pieces"])
def test_score(loaded: tuple[Any, Any], prefix: list[int], options: dict[str, int]) -> None:
    model, _ = loaded
    scores = mt.lm.score(model, prefix, QUESTIONS, CHOICES, **options)
    assert scores.dtype == np.float32
    assert np.abs(scores - expected(model, prefix)).max() <= 1e-4
    assert np.allclose(np.exp(scores).sum(1), 1, atol=1e-6)


def test_texts(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    by_text = mt.lm.score(model, "Once upon", [" a time", " midnight"], ["A", "B"], tokenizer=tokenizer)
    ids = [tokenizer.encode(text) for text in ("Once upon", " a time", " midnight", "A", "B")]
    by_ids = mt.lm.score(model, ids[0], ids[1:3], [ids[3][0], ids[4][0]])
    assert np.array_equal(by_text, by_ids)


@pytest.mark.parametrize(("bits", "tied"), [(None, False), (4, True), (4, False)])
def test_heads(loaded: tuple[Any, Any], bits: int | None, tied: bool) -> None:
    from mlx_tessl.models import qwen3_5

    text = {**loaded[0].args.text_config, "tie_word_embeddings": tied}
    model = qwen3_5.Model(qwen3_5.ModelArgs("qwen3_5_text", text))
    if bits:
        nn.quantize(model, 32, bits)
    scores = mt.lm.score(model, PREFIX, QUESTIONS, CHOICES)
    assert np.abs(scores - expected(model, PREFIX)).max() <= 1e-4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1], [[2], []], [3]), "a question is empty"),
        (([1], [[2]], [320]), "token 320 is not in the vocabulary"),
        (([-1], [[2]], [3]), "token -1"),
        (("text", [[2]], [3]), "texts need a tokenizer"),
    ],
)
def test_refusals(loaded: tuple[Any, Any], arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mt.lm.score(loaded[0], *arguments)


def test_a_choice_is_one_token(loaded: tuple[Any, Any]) -> None:
    with pytest.raises(ValueError, match="'yes' is 3 tokens"):
        mt.lm.score(loaded[0], [1], [[2]], ["yes"], tokenizer=loaded[1])


def test_another_model() -> None:
    with pytest.raises(ValueError, match=r"it must be a Qwen3\.5"):
        mt.lm.score(nn.Linear(2, 2), [1], [[2]], [3])


class TestScoreRows:
    def test_result(self) -> None:
        rng = np.random.default_rng(0)
        hidden, weight = (rng.standard_normal(shape).astype(np.float32) for shape in ((9, 16), (50, 16)))
        rows, ids = np.array([3, 0, 8]), np.array([7, 49, 2])
        logits = hidden[rows].astype(np.float64) @ weight[ids].astype(np.float64).T
        scores = mt.score_rows(*(mx.array(x) for x in (hidden, rows, weight, ids)))
        assert np.abs(np.array(scores) - (logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))).max() <= 1e-5

    def test_what_is_not_there_is_nan(self) -> None:
        hidden, weight = mx.ones((4, 8)), mx.ones((5, 8))
        scores = mt.score_rows(hidden, mx.array([0, 4, -1]), weight, mx.array([1, 2]))
        assert mx.isnan(scores).tolist() == [[False, False], [True, True], [True, True]]
        assert mx.all(mx.isnan(mt.score_rows(hidden, mx.array([0]), weight, mx.array([1, 5])))).item()

    def test_refusals(self) -> None:
        with pytest.raises(ValueError, match=r"^\[mlx_tessl.score_rows\] hidden has shape"):
            mt.score_rows(mx.ones((4, 8)), mx.array([0]), mx.ones((5, 7)), mx.array([1]))
        with pytest.raises(ValueError, match=r"^\[mlx_tessl.score_rows\] ids has shape"):
            mt.score_rows(mx.ones((4, 8)), mx.array([0]), mx.ones((5, 8)), mx.array([1.0]))
