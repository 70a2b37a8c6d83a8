"""Sums and greatest elements of rows, four rows to a threadgroup, and their log-sum-exp, one row to a threadgroup."""

from __future__ import annotations

from typing import Literal

import numpy as np

from mlx_tessl.emulator.runtime import Out

from ..mlx_kernels import Case, MlxKernel, Result
from ..numerics import METAL_TYPE, allowed, f64, values

READS = 4  # elements of a row that a thread takes at a time
ROWS = 4


def row_reduce(op: Literal["sum", "max"], dtype: np.dtype, rows: int, columns: int) -> Case:
    """What MLX runs for whole, contiguous rows; `rows` is 4 or more."""
    metal = METAL_TYPE[dtype]
    sums = "float" if op == "sum" else metal  # what the last rounding comes after
    x = values(dtype, rows, columns, scale=3.0)
    out = np.empty(rows, np.float32 if op == "sum" else dtype)
    wide = f64(x)
    expected = wide.sum(axis=1) if op == "sum" else wide.max(axis=1)
    magnitude = np.abs(wide).sum(axis=1) if op == "sum" else np.zeros(rows)
    threads = min(-(-columns // (READS * 32)) * 32, 1024)
    return Case(
        MlxKernel(
            f"row_reduce_simple_{op}{dtype.name}",
            f"row_reduce_simple<{metal}, {sums}, {op.capitalize()}<{sums}>>",
            ("atomic.h", "reduction/ops.h", "reduce.h"),
        ),
        {0: x, 1: Out(out), 2: np.uint64(columns), 3: np.int64(rows)},
        grid=(1, -(-rows // ROWS)),
        group=(threads,),
        results=(Result(op, out, expected, allowed(out.dtype, expected, magnitude, columns)),),
    )


def logsumexp(looped: bool, dtype: np.dtype, rows: int, columns: int) -> Case:
    form = "logsumexp_looped" if looped else "logsumexp"
    prefix = "looped_" if looped else "block_"
    x = values(dtype, rows, columns, scale=3.0)
    out = np.empty(rows, dtype)
    wide = f64(x)
    most = wide.max(axis=1)
    expected = most + np.log(np.exp(wide - most[:, None]).sum(axis=1))
    threads = 1024 if looped else -(-columns // (READS * 32)) * 32
    return Case(
        MlxKernel(f"{prefix}logsumexp_{dtype.name}", f"{form}<{METAL_TYPE[dtype]}>", ("logsumexp.h",)),
        {0: x, 1: Out(out), 2: np.int32(columns)},
        grid=(rows,),
        group=(threads,),
        # The sum, exp's arguments, whose magnitude 16 bounds here, and the logarithm.
        results=(Result("y", out, expected, allowed(dtype, expected, np.abs(most) + 16.0, columns / 32 + 32)),),
    )
