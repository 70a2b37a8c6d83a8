"""Batches of rows of like length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import mlx.core as mx
import numpy as np

# Tokens whose computing takes about as long as a batch takes whatever its size: on a CPU mostly the packing of weights.
_COST_OF_BATCH = 32


def batches(lengths: Sequence[int], batch_size: int, max_tokens: int) -> Iterator[list[int]]:
    """Indices of rows, longest first, in batches of at most ``batch_size`` rows and ``max_tokens`` padded tokens.

    Of all ways to cut the sorted rows it is the one with the least padding, where a further batch counts as so much
    padding as computing takes as long. Longest first, so that memory is at its peak at once. A row longer than
    ``max_tokens`` is a batch of its own.
    """
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    start = 0
    for end in _cheapest_cuts([max(1, lengths[row]) for row in order], batch_size, max_tokens):
        yield order[start:end]
        start = end


def _cheapest_cuts(descending: Sequence[int], batch_size: int, max_tokens: int) -> list[int]:
    """Where batches end. The least cost of the first ``end`` rows is that of some ``start`` and of one batch more."""
    count = len(descending)
    cost = [0.0] + [float("inf")] * count
    start_of = [0] * (count + 1)
    for start, longest in enumerate(descending):
        rows = min(batch_size, max(1, max_tokens // longest), count - start)
        total = cost[start] + _COST_OF_BATCH
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
