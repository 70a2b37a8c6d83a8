"""Sparse vectors on the host, in compressed rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, overload

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, eq=False)
class SparseVector:
    """``size`` components, zero but for ``values`` (float32, positive) at the ascending ``indices`` (int32)."""

    indices: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]
    size: int

    @classmethod
    def from_dense(
        cls, dense: npt.NDArray[np.float32], max_active: int | None = None, min_weight: float = 0.0
    ) -> SparseVector:
        """The components of ``dense [V]`` above ``min_weight``, or the ``max_active`` largest of them."""
        indices = np.flatnonzero(dense > min_weight)
        if max_active is not None and len(indices) > max_active:
            largest = np.argpartition(dense[indices], -max_active)[-max_active:]
            indices = np.sort(indices[largest])
        return cls(indices.astype(np.int32), dense[indices].astype(np.float32), len(dense))

    def __len__(self) -> int:
        return len(self.indices)

    def to_dense(self) -> npt.NDArray[np.float32]:
        """float32 ``[size]``."""
        dense = np.zeros(self.size, np.float32)
        dense[self.indices] = self.values
        return dense


@dataclass(frozen=True, eq=False)
class SparseVectors:
    """Rows of sparse vectors: row ``i`` is ``indices`` and ``values`` from ``indptr[i]`` to ``indptr[i + 1]``."""

    indices: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]
    indptr: npt.NDArray[np.int64]
    size: int

    @classmethod
    def from_rows(cls, rows: Sequence[SparseVector], size: int) -> SparseVectors:
        """Stacks ``rows``, each of ``size`` components."""
        indptr = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=indptr[1:])
        indices = np.concatenate([np.zeros(0, np.int32), *(row.indices for row in rows)])
        values = np.concatenate([np.zeros(0, np.float32), *(row.values for row in rows)])
        return cls(indices, values, indptr, size)

    @classmethod
    def concatenate(cls, parts: Sequence[SparseVectors], size: int) -> SparseVectors:
        """The rows of all ``parts``, in order."""
        if len(parts) == 1:
            return parts[0]
        ends = np.cumsum([0, *(len(part.values) for part in parts)])
        starts = [part.indptr[:-1] + end for part, end in zip(parts, ends, strict=False)]
        return cls(
            np.concatenate([np.zeros(0, np.int32), *(part.indices for part in parts)]),
            np.concatenate([np.zeros(0, np.float32), *(part.values for part in parts)]),
            np.concatenate([*starts, ends[-1:]]).astype(np.int64),
            size,
        )

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and components."""
        return len(self), self.size

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @overload
    def __getitem__(self, row: int) -> SparseVector: ...

    @overload
    def __getitem__(self, row: slice) -> SparseVectors: ...

    def __getitem__(self, row: int | slice) -> SparseVector | SparseVectors:
        if isinstance(row, slice):
            return SparseVectors.from_rows([self[i] for i in range(*row.indices(len(self)))], self.size)
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        part = slice(self.indptr[row % len(self)], self.indptr[row % len(self) + 1])
        return SparseVector(self.indices[part], self.values[part], self.size)

    def __iter__(self) -> Iterator[SparseVector]:
        return (self[row] for row in range(len(self)))

    def normalized(self) -> SparseVectors:
        """Every row at unit Euclidean length; empty rows stay empty."""
        squares = np.bincount(self._row_of(), np.square(self.values, dtype=np.float64), len(self))
        lengths = np.sqrt(np.maximum(squares, 1e-24))
        values = self.values / np.repeat(lengths, np.diff(self.indptr))
        return SparseVectors(self.indices, values.astype(np.float32), self.indptr, self.size)

    def to_dense(self) -> npt.NDArray[np.float32]:
        """float32 ``[rows, size]``."""
        return np.stack([row.to_dense() for row in self]) if len(self) else np.zeros(self.shape, np.float32)

    def dot(self, vector: SparseVector) -> npt.NDArray[np.float32]:
        """The inner product of every row with ``vector``: float32 ``[rows]``, summed in float64."""
        if vector.size != self.size:
            raise ValueError(f"[SparseVectors.dot] the vector has {vector.size} components; the rows have {self.size}")
        products = self.values * vector.to_dense()[self.indices]
        return np.bincount(self._row_of(), products, len(self)).astype(np.float32)

    def _row_of(self) -> npt.NDArray[np.int64]:
        """The row of each value."""
        return np.repeat(np.arange(len(self)), np.diff(self.indptr))

    def save(self, file: IO[bytes]) -> None:
        """Writes the ``.npz`` form that ``scipy.sparse.load_npz`` reads."""
        np.savez_compressed(
            file,
            format=np.array(b"csr"),
            shape=np.array(self.shape),
            data=self.values,
            indices=self.indices,
            indptr=self.indptr,
        )
