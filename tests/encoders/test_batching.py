from __future__ import annotations

import pytest

from mlx_tessl.encoders.batching import batches, pad


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


def test_padding_is_bounded() -> None:
    lengths = [200] * 3 + [190] * 3 + [20] * 30 + [18] * 10
    sizes = [[lengths[row] for row in rows] for rows in batches(lengths, 64, 10_000)]
    assert sizes == [[200] * 3 + [190] * 3, [20] * 30 + [18] * 10]
    assert [len(rows) for rows in batches([500, 400, 300], 64, 10_000)] == [1, 1, 1]


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
