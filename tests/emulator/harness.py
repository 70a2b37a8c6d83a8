"""Kernels for the emulator's own tests, from text or from a file beside them."""

from __future__ import annotations

import hashlib
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from mlx_tessl.emulator.runtime import Source

KERNELS = Path(__file__).parent / "kernels"
_PRELUDE = "#include <metal_stdlib>\nusing namespace metal;\n"
_TENSOR_PRELUDE = (
    "#include <metal_stdlib>\n#include <metal_tensor>\n"
    "#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>\n"
    "using namespace metal;\nusing namespace mpp::tensor_ops;\n"
    "template <typename T> using matrix = tensor<device T, dextents<int, 2>, tensor_inline>;\n"
)


@cache
def metal(text: str, msl: int = 310) -> Source:
    """A source of the given text, after the usual first lines."""
    directory = Path(tempfile.gettempdir()) / "mlx_tessl_test_kernels"
    directory.mkdir(exist_ok=True)
    path = directory / f"test-{hashlib.sha256(text.encode()).hexdigest()[:16]}.metal"
    path.write_text((_TENSOR_PRELUDE if msl >= 400 else _PRELUDE) + text)
    return Source(path, msl=msl)


@cache
def file(name: str, msl: int = 310, *defines: str) -> Source:
    """A source file beside the tests."""
    return Source(KERNELS / f"{name}.metal", msl=msl, defines=defines)


def random_bits(n: int, dtype: np.dtype, seed: int = 0) -> np.ndarray:
    """Any bit patterns at all: infinities, NaN and subnormal numbers among them."""
    return np.random.default_rng(seed).integers(0, 256, n * dtype.itemsize, dtype=np.uint8).view(dtype)
