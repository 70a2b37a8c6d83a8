"""The same values in memory laid out as users' arrays come: transposed, sliced, reversed, off by one element."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mlx.core as mx
import numpy as np

Layout = Callable[[np.ndarray, mx.Dtype], mx.array]


def poison(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """What must not be read: NaN, or the largest integer."""
    return np.full(shape, np.nan if dtype.kind == "f" else np.iinfo(dtype).max, dtype)


def contiguous(x: np.ndarray, dtype: mx.Dtype) -> mx.array:
    return mx.array(x).astype(dtype)


def transposed(x: np.ndarray, dtype: mx.Dtype) -> mx.array:
    if x.ndim < 2:
        return contiguous(x, dtype)
    return contiguous(x.swapaxes(-1, -2).copy(), dtype).swapaxes(-1, -2)


def strided(x: np.ndarray, dtype: mx.Dtype) -> mx.array:
    """Every second element of each axis; the elements between are poison."""
    if x.ndim == 0:
        return contiguous(x, dtype)
    every_second = tuple(slice(None, None, 2) for _ in x.shape)
    gaps = poison([2 * n for n in x.shape], x.dtype)
    gaps[every_second] = x
    whole = contiguous(gaps, dtype)
    mx.eval(whole)
    return whole[every_second]


def offset(x: np.ndarray, dtype: mx.Dtype) -> mx.array:
    """One element into a wider, poisoned array, so that neither base nor rows are aligned."""
    if x.ndim == 0:
        return contiguous(x, dtype)
    wide = poison((*x.shape[:-1], x.shape[-1] + 3), x.dtype)
    wide[..., 1:-2] = x
    whole = contiguous(wide, dtype)
    mx.eval(whole)
    return whole[..., 1:-2]


def reversed_axes(x: np.ndarray, dtype: mx.Dtype) -> mx.array:
    """Negative strides along every axis."""
    if x.ndim == 0:
        return contiguous(x, dtype)
    backwards = tuple(slice(None, None, -1) for _ in x.shape)
    whole = contiguous(x[backwards].copy(), dtype)
    mx.eval(whole)
    return whole[backwards]


LAYOUTS: dict[str, Layout] = {
    "contiguous": contiguous,
    "transposed": transposed,
    "strided": strided,
    "offset": offset,
    "reversed": reversed_axes,
}
