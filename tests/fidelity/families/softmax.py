"""softmax of rows, one threadgroup a row: whole in registers, or in a loop where it is longer than that."""

from __future__ import annotations

import numpy as np

from mlx_tessl.emulator.runtime import Out

from ..mlx_kernels import Case, MlxKernel, Result
from ..numerics import METAL_TYPE, allowed, f64, values


def softmax(looped: bool, dtype: np.dtype, rows: int, columns: int) -> Case:
    template = f"softmax_{'looped' if looped else 'single_row'}<{METAL_TYPE[dtype]}, float>"
    precise = "" if dtype == np.float32 else "precise_"
    name = f"{'looped' if looped else 'block'}_softmax_{precise}{dtype.name}"
    x = values(dtype, rows, columns, scale=3.0)
    y = np.empty_like(x)
    shifted = np.exp(f64(x) - f64(x).max(axis=1, keepdims=True))
    expected = shifted / shifted.sum(axis=1, keepdims=True)
    threads = 1024 if looped else -(-columns // (4 * 32)) * 32
    return Case(
        MlxKernel(name, template, ("softmax.h",)),
        {0: x, 1: Out(y), 2: np.int32(columns)},
        grid=(rows,),
        group=(threads,),
        # exp's argument is rounded once, which 2^-24 |x - max| <= 2^-20 of the result covers; then sum and quotient.
        results=(Result("y", y, expected, allowed(dtype, expected, expected, 32)),),
    )
