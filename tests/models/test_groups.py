"""Rows of unlike length at once give what they give group by group."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest

from mlx_tessl.models import load_model
from mlx_tessl.models.groups import Groups, Rows

GOLDEN = Path(__file__).parent.parent / "golden"


def rows(seed: int, vocabulary: int) -> list[Rows]:
    """One row, several of another length, padded ones, and one of a single token."""
    mx.random.seed(seed)
    ids = [mx.random.randint(0, vocabulary, shape) for shape in ((1, 40), (3, 17), (2, 9), (1, 1))]
    lengths = [None, mx.array([17, 0, 5]), None, None]
    return list(zip(ids, lengths, strict=True))


@pytest.mark.parametrize(
    "checkpoint", ["bert_mlm_tiny", "distilbert_mlm_tiny", "embeddinggemma1_tiny", "embeddinggemma2_tiny"]
)
def test_groups_do_not_see_each_other(checkpoint: str) -> None:
    model = load_model(GOLDEN / checkpoint)
    groups = rows(0, model.args.vocab_size)
    together = model.encode_groups(groups)
    for states, (ids, lengths) in zip(together, groups, strict=True):
        alone = model(ids, lengths)
        counts = mx.full(ids.shape[:1], ids.shape[1]) if lengths is None else lengths
        seen = (mx.arange(ids.shape[1]) < counts[:, None])[..., None]
        assert states.shape == alone.shape
        # Products of more rows may be cut otherwise: rounding alone. Seen: 6e-7.
        assert mx.abs(mx.where(seen, states - alone, 0)).max().item() <= 1e-5 * mx.abs(alone).max().item()


def test_the_matrix_of_tokens() -> None:
    groups = Groups([(mx.array([[5, 6, 7]]), None), (mx.array([[1, 2], [3, 4]]), None)])
    assert groups.input_ids.tolist() == [5, 6, 7, 1, 2, 3, 4]
    assert groups.positions.tolist() == [0, 1, 2, 0, 1, 0, 1]
    assert [part.tolist() for part in groups.split(groups.input_ids)] == [[[5, 6, 7]], [[1, 2], [3, 4]]]


def test_a_row_longer_than_the_positions_is_refused() -> None:
    model = load_model(GOLDEN / "bert_mlm_tiny")
    with pytest.raises(ValueError, match="65 tokens a row; the model has 64 positions"):
        model.encode_groups([(mx.zeros((1, 3), mx.int32), None), (mx.zeros((1, 65), mx.int32), None)])
