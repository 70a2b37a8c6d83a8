"""Batches of rows: of like length, padded to the longest, or of several such groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import mlx.core as mx
import numpy as np

# Tokens whose computing takes about as long as a batch takes whatever its size, on a CPU mostly the packing of weights;
# and as one group of a batch more, which attention takes by itself.
_COST_OF_BATCH = 32
_COST_OF_GROUP = 8


def batches(lengths: Sequence[int], batch_size: int, max_tokens: int) -> Iterator[list[int]]:
    """Indices of rows, longest first, in batches of at most ``batch_size`` rows and ``max_tokens`` padded tokens.

    Of all ways to cut the sorted rows it is the one with the least padding, where a further batch counts as so much
    padding as computing takes as long. Longest first, so that memory is at its peak at once. A row longer than
    ``max_tokens`` is a batch of its own.
    """
    order = _longest_first(lengths)
    yield from _cut(order, lengths, batch_size, max_tokens, _COST_OF_BATCH)


def grouped_batches(lengths: Sequence[int], batch_size: int, max_tokens: int) -> Iterator[list[list[int]]]:
    """Indices of rows, longest first, in batches as :func:`batches` has them, but only a group of rows shares padding.

    A batch is groups of rows of like length, with the least padding, where a further group counts as some.
    """
    order = _longest_first(lengths)
    while order:
        rows = tokens = 0
        for row in order[:batch_size]:
            tokens += max(1, lengths[row])
            if rows > 0 and tokens > max_tokens:
                break
            rows += 1
        yield list(_cut(order[:rows], lengths, rows, rows * max(1, lengths[order[0]]), _COST_OF_GROUP))
        order = order[rows:]


def _longest_first(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda row: -lengths[row])


def _cut(
    order: Sequence[int], lengths: Sequence[int], most_rows: int, most_tokens: int, cost_of_piece: int
) -> Iterator[list[int]]:
    start = 0
    for end in _cheapest_cuts([max(1, lengths[row]) for row in order], most_rows, most_tokens, cost_of_piece):
        yield list(order[start:end])
        start = end


def _cheapest_cuts(descending: Sequence[int], most_rows: int, most_tokens: int, cost_of_piece: int) -> list[int]:
    """Where pieces end. The least cost of the first ``end`` rows is that of some ``start`` and of one piece more."""
    count = len(descending)
    cost = [0.0] + [float("inf")] * count
    start_of = [0] * (count + 1)
    for start, longest in enumerate(descending):
        rows = min(most_rows, max(1, most_tokens // longest), count - start)
        total = cost[start] + cost_of_piece
        for end in range(start + 1, start + rows + 1):
            total += longest
            if total < cost[end]:
                cost[end] = total
                start_of[end] = start
    cuts = []
    end = count
    while end > 0:
        cuts.append(end)
        end = start_of[end]
    return cuts[::-1]


def pad(sequences: Sequence[Sequence[int]], pad_id: int) -> tuple[mx.array, mx.array | None]:
    """``ids [B, T]`` padded on the right, and ``lengths [B]``, which is ``None`` when no row is padded."""
    lengths = np.array([len(sequence) for sequence in sequences], np.int32)
    ids = np.full((len(sequences), max(1, lengths.max())), pad_id, np.int32)
    for row, sequence in zip(ids, sequences, strict=True):
        row[: len(sequence)] = sequence
    same = bool((lengths == ids.shape[1]).all())
    return mx.array(ids), None if same else mx.array(lengths)
