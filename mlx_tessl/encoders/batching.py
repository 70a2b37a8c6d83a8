"""Batches of rows of like length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import mlx.core as mx
import numpy as np


def batches(lengths: Sequence[int], batch_size: int, max_tokens: int) -> Iterator[list[int]]:
    """Indices of rows, longest first, in batches of at most ``batch_size`` rows and ``max_tokens`` padded tokens.

    Longest first, so that memory is at its peak at once. A row longer than ``max_tokens`` is a batch of its own.
    """
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    start = 0
    while start < len(order):
        longest = max(1, lengths[order[start]])
        rows = max(1, min(batch_size, max_tokens // longest))
        yield order[start : start + rows]
        start += rows


def pad(sequences: Sequence[Sequence[int]], pad_id: int) -> tuple[mx.array, mx.array | None]:
    """``ids [B, T]`` padded on the right, and ``lengths [B]``, which is ``None`` when no row is padded."""
    lengths = np.array([len(sequence) for sequence in sequences], np.int32)
    ids = np.full((len(sequences), max(1, lengths.max())), pad_id, np.int32)
    for row, sequence in zip(ids, sequences, strict=True):
        row[: len(sequence)] = sequence
    same = bool((lengths == ids.shape[1]).all())
    return mx.array(ids), None if same else mx.array(lengths)
