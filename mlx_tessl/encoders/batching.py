"""Batches of rows of like length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import mlx.core as mx
import numpy as np

# Tokens whose computing takes about as long as a batch takes whatever its size: on a CPU mostly the packing of weights.
_COST_OF_BATCH = 32


def batches(lengths: Sequence[int], batch_size: int, max_tokens: int) -> Iterator[list[int]]:
    """Indices of rows, longest first, in batches of at most ``batch_size`` rows and ``max_tokens`` padded tokens.

    A batch also ends where its padding would cost more than another batch. Longest first, so that memory is at its peak
    at once. A row longer than ``max_tokens`` is a batch of its own.
    """
    batch: list[int] = []
    longest = padding = 0
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        padding += longest - lengths[row]
        full = len(batch) == batch_size or (len(batch) + 1) * longest > max_tokens
        if batch and (full or padding > _COST_OF_BATCH):
            yield batch
            batch = []
        if not batch:
            longest, padding = max(1, lengths[row]), 0
        batch.append(row)
    if batch:
        yield batch


def pad(sequences: Sequence[Sequence[int]], pad_id: int) -> tuple[mx.array, mx.array | None]:
    """``ids [B, T]`` padded on the right, and ``lengths [B]``, which is ``None`` when no row is padded."""
    lengths = np.array([len(sequence) for sequence in sequences], np.int32)
    ids = np.full((len(sequences), max(1, lengths.max())), pad_id, np.int32)
    for row, sequence in zip(ids, sequences, strict=True):
        row[: len(sequence)] = sequence
    same = bool((lengths == ids.shape[1]).all())
    return mx.array(ids), None if same else mx.array(lengths)
