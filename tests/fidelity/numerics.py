"""Element types, operands and rounding errors of the fidelity suite."""

from __future__ import annotations

import ml_dtypes
import numpy as np

FLOAT32, FLOAT16, BFLOAT16 = np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)

METAL_TYPE = {FLOAT32: "float", FLOAT16: "half", BFLOAT16: "bfloat16_t"}
HOST_TYPE = {FLOAT32: "float", FLOAT16: "float16_t", BFLOAT16: "bfloat16_t"}  # in names of kernels
UNIT_ROUNDOFF = {FLOAT32: 2.0**-24, FLOAT16: 2.0**-11, BFLOAT16: 2.0**-8}
SMALLEST = {FLOAT32: 2.0**-126, FLOAT16: 2.0**-25, BFLOAT16: 2.0**-126}

TF32 = 2.0**14  # the truncation of a float32 operand to tf32, up to 2^-10 of it, in roundings of float32


def values(dtype: np.dtype, *shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    """Normally distributed operands, the same for the same arguments."""
    random = np.random.default_rng([seed, *shape])
    return (scale * random.standard_normal(shape)).astype(np.float32).astype(dtype)


def f64(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


def allowed(dtype: np.dtype, expected: np.ndarray, magnitude: np.ndarray, roundings: float) -> np.ndarray:
    """The error that `roundings` float32 roundings of `magnitude` and one rounding of the result to `dtype` explain."""
    return roundings * 2.0**-24 * magnitude + UNIT_ROUNDOFF[dtype] * np.abs(expected) + SMALLEST[dtype]
