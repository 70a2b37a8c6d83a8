"""What the text encoders have in common: rows of unlike length go through at once, without padding between them.

Shapes: ``B`` rows of ``T`` tokens, ``N`` tokens of all rows, ``H`` hidden units.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from ..ops import attention
from .config import check_ids

# Token ids ``[B, T]`` and how many of each row's tokens count, ``[B]``; ``None`` for all.
Rows = tuple[mx.array, mx.array | None]


class Groups:
    """Rows as one matrix of tokens ``[N, ...]``, group after group, each of ``B`` rows of ``T`` tokens.

    Products, norms and rotations take all tokens at once; attention takes a group at a time.

    Attributes:
        input_ids: ``[N]``.
        positions: ``[N]``, each token's place in its row.
    """

    def __init__(self, rows: Sequence[Rows]):
        self._shapes = [ids.shape for ids, _ in rows]
        self._lengths = [lengths for _, lengths in rows]
        self.input_ids = self.join([ids for ids, _ in rows])
        self.positions = self.join([mx.broadcast_to(mx.arange(shape[1]), shape) for shape in self._shapes])

    def join(self, parts: Sequence[mx.array]) -> mx.array:
        """``[N, ...]`` of every group's ``[B, T, ...]``."""
        return mx.concatenate([part.flatten(0, 1) for part in parts])

    def split(self, x: mx.array) -> list[mx.array]:
        """Every group's ``[B, T, ...]`` of ``x [N, ...]``."""
        ends = list(accumulate(prod(shape) for shape in self._shapes))[:-1]
        return [mx.unflatten(part, 0, shape) for part, shape in zip(mx.split(x, ends), self._shapes, strict=True)]

    def attend(self, query: mx.array, key: mx.array, value: mx.array, **options: Any) -> mx.array:
        """:func:`mlx_tessl.attention` of every row to itself: ``[N, heads * D]`` of ``query [N, heads, D]``."""
        parts = zip(*map(self.split, (query, key, value)), self._lengths, strict=True)
        contexts = [
            attention(q.swapaxes(1, 2), k.swapaxes(1, 2), v.swapaxes(1, 2), lengths=lengths, **options).swapaxes(1, 2)
            for q, k, v, lengths in parts
        ]
        return self.join(contexts).flatten(-2)


def split_heads(x: mx.array, heads: int) -> mx.array:
    """``[N, heads * D]`` as ``[N, heads, D]``."""
    return mx.unflatten(x, -1, (heads, -1))


class TextEncoder(nn.Module):
    """Token ids to a vector for each token; what a model computes is its :meth:`hidden`."""

    model_type: str

    def __call__(self, input_ids: mx.array, lengths: mx.array | None = None) -> mx.array:
        """A vector for each token.

        Args:
            input_ids: ``[B, T]`` integers below ``vocab_size``; they are not checked here.
            lengths: ``[B]`` integers; row ``b`` attends to its first ``lengths[b]`` tokens only. ``None``: to all.
                What stands after them never changes the row.

        Returns:
            ``[B, T, H]`` in the dtype of the weights. Positions past a row's length hold finite values without meaning.

        Raises:
            ValueError: ``input_ids`` is not ``[B, T]``, or has more tokens than the model has positions.
        """
        return self.encode_groups([(input_ids, lengths)])[0]

    def encode_groups(self, rows: Sequence[Rows]) -> list[mx.array]:
        """What a call gives for each of ``rows``, all of them at once and without padding between them.

        Args:
            rows: ``input_ids`` and ``lengths`` of a call each.
        """
        groups = self._groups(rows)
        return groups.split(self.hidden(groups))

    def hidden(self, groups: Groups) -> mx.array:
        """``[N, H]``."""
        raise NotImplementedError

    def _groups(self, rows: Sequence[Rows]) -> Groups:
        check_ids(self.model_type, [ids for ids, _ in rows], self.args.max_position_embeddings)
        return Groups(rows)
