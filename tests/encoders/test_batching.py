from __future__ import annotations

import itertools
import random

import pytest

from mlx_tessl.encoders.batching import batches, grouped_batches, pad


@pytest.mark.parametrize("lengths", [[], [0], [5] * 9, [1, 100, 3, 70, 2, 99, 0, 4], list(range(50))])
@pytest.mark.parametrize(("batch_size", "max_tokens"), [(1, 10), (4, 1), (4, 200), (1000, 1000)])
def test_every_row_once_within_the_limits(lengths: list[int], batch_size: int, max_tokens: int) -> None:
    seen = []
    longest_before = 10**9
    for rows in batches(lengths, batch_size, max_tokens):
        longest = max(lengths[row] for row in rows)
        assert longest <= longest_before
        longest_before = longest
        assert 1 <= len(rows) <= batch_size
        assert len(rows) == 1 or len(rows) * longest <= max_tokens
        seen += rows
    assert sorted(seen) == list(range(len(lengths)))


def cost(lengths: list[int], cuts: list[list[int]]) -> int:
    """Padded tokens, and 32 for each batch."""
    return sum(max(1, max(lengths[row] for row in rows)) * len(rows) + 32 for rows in cuts)


@pytest.mark.parametrize("seed", range(20))
def test_no_cut_is_cheaper(seed: int) -> None:
    """Of all ways to cut ten sorted rows."""
    rng = random.Random(seed)
    lengths = [rng.choice([1, 2, 5, 20, 50, 120, 121, 400]) + rng.randrange(3) for _ in range(10)]
    order = sorted(range(10), key=lambda row: -lengths[row])
    allowed = []
    for ends in itertools.product([False, True], repeat=9):
        cuts, batch = [], [order[0]]
        for row, end in zip(order[1:], ends, strict=True):
            if end:
                cuts.append(batch)
                batch = []
            batch.append(row)
        cuts.append(batch)
        if all(len(rows) == 1 or (len(rows) <= 4 and len(rows) * lengths[rows[0]] <= 500) for rows in cuts):
            allowed.append(cost(lengths, cuts))
    assert cost(lengths, list(batches(lengths, 4, 500))) == min(allowed)


def test_a_long_document_pads_no_query() -> None:
    lengths = [6000] + [12] * 40
    assert [len(rows) for rows in batches(lengths, 64, 8192)] == [1, 40]


def test_padding_is_bounded() -> None:
    lengths = [200] * 3 + [190] * 3 + [20] * 30 + [18] * 10
    sizes = [[lengths[row] for row in rows] for rows in batches(lengths, 64, 10_000)]
    assert sizes == [[200] * 3 + [190] * 3, [20] * 30 + [18] * 10]
    assert [len(rows) for rows in batches([500, 400, 300], 64, 10_000)] == [1, 1, 1]


@pytest.mark.parametrize("lengths", [[], [0], [5] * 9, [1, 100, 3, 70, 2, 99, 0, 4], list(range(50))])
@pytest.mark.parametrize(("batch_size", "max_tokens"), [(1, 10), (4, 1), (4, 200), (1000, 1000)])
def test_every_row_once_in_groups_within_the_limits(lengths: list[int], batch_size: int, max_tokens: int) -> None:
    seen = []
    for groups in grouped_batches(lengths, batch_size, max_tokens):
        rows = [row for group in groups for row in group]
        assert all(groups)
        assert 1 <= len(rows) <= batch_size
        assert len(rows) == 1 or sum(lengths[row] for row in rows) <= max_tokens
        seen += rows
    assert sorted(seen) == list(range(len(lengths)))
    assert [lengths[row] for row in seen] == sorted(lengths, reverse=True)


def test_a_batch_is_full_and_pads_rows_of_like_length_only() -> None:
    lengths = [300, 90, 90, 89, 40, 40, 8, 7]
    sizes = [[[lengths[row] for row in group] for group in groups] for groups in grouped_batches(lengths, 64, 600)]
    assert sizes == [[[300], [90, 90, 89]], [[40, 40], [8, 7]]]


def test_padding() -> None:
    ids, lengths = pad([[1, 2, 3], [], [4]], 9)
    assert ids.tolist() == [[1, 2, 3], [9, 9, 9], [4, 9, 9]]
    assert lengths is not None
    assert lengths.tolist() == [3, 0, 1]


def test_no_lengths_without_padding() -> None:
    ids, lengths = pad([[1, 2], [3, 4]], 9)
    assert ids.tolist() == [[1, 2], [3, 4]]
    assert lengths is None


def test_one_empty_row() -> None:
    ids, lengths = pad([[]], 9)
    assert ids.tolist() == [[9]]
    assert lengths is not None
    assert lengths.tolist() == [0]
