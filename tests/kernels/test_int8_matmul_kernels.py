"""The int8 shaders, run from their source in the emulator with every check on, against NumPy's int64."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import mlx_tessl as mt

from ..ops.conformance.int8_matmul import codes, int8_matmul_oracle

DEVICES = {"portable": ("m1", "15.0"), "tensorops": ("m5-pro", "26.4")}
UNIT_ROUNDOFF = {mx.float32: 2.0**-24, mx.float16: 2.0**-11, mx.bfloat16: 2.0**-8}

families = pytest.mark.parametrize("family", DEVICES)


def run(family: str, a: mx.array, b: mx.array, *, check: bool = True, **keywords: Any) -> tuple[mx.array, list[str]]:
    gpu, macos = DEVICES[family]
    mx.eval(a, b, *(x for x in keywords.values() if isinstance(x, mx.array)))
    with mt.trace() as entries:
        with mt.emulate(gpu, macos, check=check, seed=1):
            result = mt.int8_matmul(a, b, stream=mx.cpu, **keywords)
        mx.eval(result)
    (entry,) = entries
    return result, [launch.kernel for launch in entry.launches]


def laid_out(x: np.ndarray, letter: str) -> mx.array:
    return mx.array(x) if letter == "n" else mx.array(np.ascontiguousarray(x.swapaxes(-1, -2))).swapaxes(-1, -2)


@families
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize(("M", "N", "K"), [(64, 64, 64), (70, 45, 133), (1, 1, 1), (33, 200, 7), (65, 34, 300)])
def test_layouts_at_ragged_sizes(family: str, layout: str, M: int, N: int, K: int) -> None:
    a, b = codes(M, K), codes(K, N, seed=1)
    result, (kernel,) = run(family, laid_out(a, layout[0]), laid_out(b, layout[1]))
    assert np.array_equal(np.array(result), a.astype(np.int64) @ b.astype(np.int64))
    # A column of 33 int8 ends within 16 bytes, which matmul2d does not mind: only bases must be aligned.
    assert kernel.startswith(f"int8_matmul_{family}_")
    if min(M, N, K) > 1:
        assert f"_{layout}_int32_" in kernel


@families
@pytest.mark.parametrize(("M", "N", "K"), [(4, 9, 1024), (3, 5, 1025), (5, 3, 2100)])
@pytest.mark.parametrize(("x", "y"), [(-128, -128), (-128, 127)])
def test_sums_beyond_what_float32_holds(family: str, M: int, N: int, K: int, x: int, y: int) -> None:
    a, b = np.full((M, K), x, np.int8), np.full((K, N), y, np.int8)
    a[:, 0] = b[0, :] = 1  # an odd sum
    result, _ = run(family, mx.array(a), mx.array(b))
    assert np.array_equal(np.array(result), a.astype(np.int64) @ b.astype(np.int64))


@families
@pytest.mark.parametrize("dtype", UNIT_ROUNDOFF)
@pytest.mark.parametrize("activation", [None, "relu", "silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("N", [68, 45])
def test_epilogue(family: str, dtype: mx.Dtype, activation: str | None, N: int) -> None:
    a, b = codes(2, 37, 48), codes(48, N, seed=1)
    rng = np.random.default_rng(0)
    scales = {
        name: rng.standard_normal(n).astype(np.float32) * 2.0**-7 for name, n in (("scale_a", 37), ("scale_b", N))
    }
    addends = {**scales, "bias": rng.standard_normal(N).astype(np.float32)}
    arrays = {name: mx.array(x) for name, x in addends.items()}
    result, (kernel,) = run(family, mx.array(a), mx.array(b), **arrays, activation=activation, dtype=dtype)
    assert kernel.startswith(f"int8_matmul_{family}_nn_{str(dtype).removeprefix('mlx.core.')}_")
    expected, magnitude = int8_matmul_oracle(
        a, b, activation=activation, **{name: x.astype(np.float64) for name, x in addends.items()}
    )
    allowed = 14 * 2.0**-24 * magnitude + UNIT_ROUNDOFF[dtype] * np.abs(expected) + 2.0**-25
    error = np.abs(np.array(result.astype(mx.float32)).astype(np.float64) - expected)
    assert np.all(error <= allowed), np.max(error / allowed)


@families
def test_batches_and_strides(family: str) -> None:
    a, b = codes(3, 1, 20, 48), codes(2, 48, 36, seed=1)
    scale_a, scale_b = np.float32(2.0 ** np.arange(20)), np.float32(2.0 ** -np.arange(72).reshape(2, 36))
    result, _ = run(family, mx.array(a), mx.array(b), scale_a=mx.array(scale_a), scale_b=mx.array(scale_b))
    expected, _ = int8_matmul_oracle(a, b, scale_a.astype(np.float64), scale_b.astype(np.float64))
    assert np.array_equal(np.array(result), expected.astype(np.float32))
    strided = mx.array(np.repeat(a, 2, axis=-1))[..., ::2]
    result, kernels = run(family, strided, mx.array(b))
    assert kernels[0].startswith("copy_strided_uint8")
    assert np.array_equal(np.array(result), a.astype(np.int64) @ b.astype(np.int64))


@families
def test_no_k(family: str) -> None:
    bias = np.arange(12, dtype=np.float32)
    result, _ = run(family, mx.zeros((5, 0), mx.int8), mx.zeros((0, 12), mx.int8), bias=mx.array(bias))
    assert np.array_equal(np.array(result), np.broadcast_to(bias, (5, 12)))


@pytest.mark.parametrize(
    ("family", "M", "N", "tile"),
    [("portable", 260, 300, "64x64"), ("portable", 200, 30, "32x32"), ("tensorops", 300, 1024, "128x64")],
)
def test_tiles(family: str, M: int, N: int, tile: str) -> None:
    a, b = codes(M, 40), codes(40, N, seed=1)
    result, (kernel,) = run(family, mx.array(a), mx.array(b), check=False)
    assert kernel.endswith(tile)
    assert np.array_equal(np.array(result), a.astype(np.int64) @ b.astype(np.int64))
