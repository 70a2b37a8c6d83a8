"""Scores of pairs of embeddings, higher for the more alike: those that sentence-transformers has."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ..ops import l2_normalize, matmul

FloatArray = npt.NDArray[np.float32]

# Elements of a difference held at once.
_MAX_ELEMENTS = 1 << 24


def _dot(a: FloatArray, b: FloatArray) -> FloatArray:
    return np.array(matmul(mx.array(a), mx.array(b).T))


def _cosine(a: FloatArray, b: FloatArray) -> FloatArray:
    return np.array(matmul(l2_normalize(mx.array(a), 1e-12), l2_normalize(mx.array(b), 1e-12).T))


def _euclidean(a: FloatArray, b: FloatArray) -> FloatArray:
    return _by_differences(a, b, lambda difference: -np.sqrt(np.square(difference).sum(axis=-1)))


def _manhattan(a: FloatArray, b: FloatArray) -> FloatArray:
    return _by_differences(a, b, lambda difference: -np.abs(difference).sum(axis=-1))


def _by_differences(a: FloatArray, b: FloatArray, score: Callable[[FloatArray], FloatArray]) -> FloatArray:
    """``score`` of every difference, a few rows of ``a`` at a time."""
    step = max(1, _MAX_ELEMENTS // max(1, b.size))
    parts = [score(a[i : i + step, None] - b) for i in range(0, len(a), step)]
    return np.concatenate(parts) if parts else np.zeros((0, len(b)), np.float32)


FUNCTIONS: dict[str, Callable[[FloatArray, FloatArray], FloatArray]] = {
    "cosine": _cosine,
    "dot": _dot,
    "euclidean": _euclidean,
    "manhattan": _manhattan,
}
