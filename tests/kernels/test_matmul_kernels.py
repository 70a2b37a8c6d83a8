"""The matmul shaders, run from their source in the emulator with every check on, against float64."""

from __future__ import annotations

import itertools
import math
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import mlx_tessl as mt

from ..ops.conformance.matmul import linear_oracle, matmul_oracle
from ..ops.layouts import LAYOUTS

DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
UNIT_ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
TINY = {"float32": 2.0**-126, "float16": 2.0**-25, "bfloat16": 2.0**-126}
DEVICES = {"portable": ("m1", "15.0"), "tensorops": ("m5-pro", "26.4")}

families = pytest.mark.parametrize("family", DEVICES)
dtypes = pytest.mark.parametrize("dtype", DTYPES)


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def float64(x: mx.array) -> np.ndarray:
    return np.array(x.astype(mx.float32)).astype(np.float64)


def run(
    op: Any, family: str, *arrays: mx.array, check: bool = True, order: str = "forward", **keywords: Any
) -> tuple[mx.array, list[str]]:
    """The result of an op on a device, and the kernels that computed it."""
    gpu, macos = DEVICES[family]
    mx.eval(*arrays, *(x for x in keywords.values() if isinstance(x, mx.array)))
    with mt.trace() as entries:
        with mt.emulate(gpu, macos, check=check, order=order, seed=1):  # type: ignore[arg-type]
            result = op(*arrays, stream=mx.cpu, **keywords)
        mx.eval(result)
    (entry,) = entries
    assert entry.backend == "emulator"
    return result, [launch.kernel for launch in entry.launches]


def assert_close(
    result: mx.array, expected: np.ndarray, magnitude: np.ndarray, dtype: str, K: int, operand_error: float = 0.0
) -> None:
    """Errors within K + 16 float32 roundings of the sum of magnitudes, those of the operands, and one of the result.

    Of that 0.12 was used by float32; float16 and bfloat16 use almost all, for their one rounding is exact.
    """
    assert result.shape == expected.shape
    assert result.dtype == DTYPES[dtype]
    allowed = 1.13 * ((K + 16) * 2.0**-24 + operand_error) * magnitude + UNIT_ROUNDOFF[dtype] * np.abs(expected)
    error = np.abs(float64(result) - expected)
    assert np.all(error <= allowed + TINY[dtype]), np.max(error / (allowed + TINY[dtype]))


def check_matmul(
    family: str,
    dtype: str,
    a: mx.array,
    b: mx.array,
    *,
    check: bool = True,
    order: str = "forward",
    precision: str = "exact",
    operand_error: float = 0.0,
    **keywords: Any,
) -> list[str]:
    result, kernels = run(mt.matmul, family, a, b, check=check, order=order, precision=precision, **keywords)
    exact = {k: float64(x) if isinstance(x, mx.array) else x for k, x in keywords.items()}
    expected, magnitude = matmul_oracle(float64(a), float64(b), **exact)
    assert_close(result, expected, magnitude, dtype, a.shape[-1], operand_error)
    return kernels


def laid_out(layout: str, dtype: str, *shape: int, seed: int = 0) -> mx.array:
    return LAYOUTS[layout](values(*shape, seed=seed), DTYPES[dtype])


@families
@dtypes
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize(
    ("M", "N", "K"),
    [
        (64, 64, 64),
        (70, 45, 133),
        (1, 1, 1),
        (1, 65, 40),
        (65, 1, 40),
        (33, 200, 7),
        (129, 130, 300),  # K in two blocks of TensorOps
    ],
)
def test_layouts_at_ragged_sizes(family: str, dtype: str, layout: str, M: int, N: int, K: int) -> None:
    stored = {"n": "contiguous", "t": "transposed"}
    a = laid_out(stored[layout[0]], dtype, M, K)
    b = laid_out(stored[layout[1]], dtype, K, N, seed=1)
    (kernel,) = check_matmul(family, dtype, a, b)
    assert kernel.startswith(f"matmul_{family}_")
    if min(M, N, K) > 1:
        assert f"_{layout}_{dtype}_" in kernel


@families
@dtypes
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_rows_with_gaps(family: str, dtype: str, layout: str) -> None:
    def with_gaps(transposed: bool, rows: int, columns: int) -> mx.array:
        wide = np.full((columns, rows + 7) if transposed else (rows, columns + 7), np.nan, np.float32)
        x = wide.T if transposed else wide
        x[:rows, :columns] = values(rows, columns)
        whole = mx.array(wide).astype(DTYPES[dtype])
        mx.eval(whole)
        return whole[:, :rows].T if transposed else whole[:, :columns]

    a, b = with_gaps(layout[0] == "t", 70, 45), with_gaps(layout[1] == "t", 45, 67)
    (kernel,) = check_matmul(family, dtype, a, b)
    assert kernel.startswith(f"matmul_{family}_{layout}_{dtype}_")


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize(("M", "N", "K"), [(70, 45, 133), (129, 700, 40)])
def test_relaxed_float32(layout: str, M: int, N: int, K: int) -> None:
    stored = {"n": "contiguous", "t": "transposed"}
    a = laid_out(stored[layout[0]], "float32", M, K)
    b = laid_out(stored[layout[1]], "float32", K, N, seed=1)
    # tf32 keeps 10 bits of each operand's mantissa, by truncation.
    (kernel,) = check_matmul("tensorops", "float32", a, b, precision="relaxed", operand_error=2 * 2.0**-10)
    assert f"_{layout}_float32_relaxed_" in kernel


@dtypes
@pytest.mark.parametrize(("M", "N", "tile"), [(256, 640, "128x64"), (130, 513, "64x64"), (200, 1300, "128x64")])
def test_tiles_of_tensorops(dtype: str, M: int, N: int, tile: str) -> None:
    a, b = laid_out("contiguous", dtype, M, 24), laid_out("contiguous", dtype, 24, N)
    precision = "relaxed" if dtype == "float32" else "exact"
    (kernel,) = check_matmul("tensorops", dtype, a, b, precision=precision, operand_error=2 * 2.0**-10)
    assert kernel.endswith(tile)


@dtypes
@pytest.mark.parametrize(("gpu", "layout", "tile"), [("m5-max", "nn", "64x128"), ("m1", "nt", "64x32")])
def test_tiles_of_other_parts(dtype: str, gpu: str, layout: str, tile: str) -> None:
    a = laid_out("contiguous", dtype, 260, 40)
    b = laid_out("transposed" if layout[1] == "t" else "contiguous", dtype, 40, 1100, seed=1)
    precision = "relaxed" if dtype == "float32" else "exact"
    with mt.trace() as entries:
        with mt.emulate(gpu, "26.4", check=True):
            result = mt.matmul(a, b, precision=precision, stream=mx.cpu)
        mx.eval(result)
    assert entries[0].launches[-1].kernel.endswith(tile)
    expected, magnitude = matmul_oracle(float64(a), float64(b))
    assert_close(result, expected, magnitude, dtype, 40, 2 * 2.0**-10 if precision == "relaxed" else 0.0)


def everything(dtype: str, M: int, N: int, *batch: int) -> dict[str, Any]:
    """An epilogue with all that there is."""
    return {
        "c": laid_out("transposed", dtype, *batch, M, N, seed=2),
        "bias": laid_out("contiguous", dtype, N),
        "alpha": 0.7,
        "beta": -1.3,
        "activation": "gelu",
    }


@dtypes
@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize(
    ("M", "N", "K"),
    [(1, 70, 128), (1, 133, 301), (2, 64, 256), (3, 131, 130), (4, 5, 515), (7, 65, 257), (8, 200, 160)],
)
def test_vectors(dtype: str, layout: str, M: int, N: int, K: int) -> None:
    a = laid_out("contiguous", dtype, M, K)
    b = laid_out("transposed" if layout == "nt" else "contiguous", dtype, K, N, seed=1)
    for keywords in ({}, everything(dtype, M, N)):
        (kernel,) = check_matmul("portable", dtype, a, b, **keywords)
        size = next(size for size in (1, 2, 4, 8) if size >= M)
        assert kernel == f"matmul_vector_{layout}_{dtype}_{size}"


@dtypes
@pytest.mark.parametrize(("layout", "kernel"), [("contiguous", "nt"), ("transposed", "nn")])
def test_a_single_column(dtype: str, layout: str, kernel: str) -> None:
    a, b = laid_out(layout, dtype, 67, 200), laid_out("contiguous", dtype, 200, 1, seed=1)
    assert check_matmul("portable", dtype, a, b, **everything(dtype, 67, 1)) == [f"matmul_vector_{kernel}_{dtype}_1"]


@dtypes
@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_vectors_of_a_batch_with_gaps(dtype: str, layout: str) -> None:
    a = laid_out("contiguous", dtype, 2, 3, 3, 150)[:, :, :2, 5:-8]
    stored = laid_out("contiguous", dtype, 3, 40, 144) if layout == "nt" else laid_out("contiguous", dtype, 3, 137, 47)
    b = stored[:, :, :137].swapaxes(1, 2) if layout == "nt" else stored[..., 3:43]
    (kernel,) = check_matmul("portable", dtype, a, b, **everything(dtype, 2, 40, 3))
    assert kernel == f"matmul_vector_{layout}_{dtype}_2"


@families
@dtypes
@pytest.mark.parametrize("layout", ["nn", "nt", "tn"])
@pytest.mark.parametrize(("M", "N", "K", "batch"), [(37, 23, 2048, ()), (18, 44, 2311, (3,))])
def test_split_k(family: str, dtype: str, layout: str, M: int, N: int, K: int, batch: tuple[int, ...]) -> None:
    stored = {"n": "contiguous", "t": "transposed"}
    a = laid_out(stored[layout[0]], dtype, *batch, M, K)
    b = laid_out(stored[layout[1]], dtype, *batch, K, N, seed=1)
    product, reduction = check_matmul(family, dtype, a, b, **everything(dtype, M, N, *batch))
    # A member of 18 x 2311 or 2311 x 44 elements does not start on 16 bytes.
    variant = family if batch == () else "portable"
    sums = dtype if dtype == "float32" else f"{dtype}_sums"
    assert product.startswith(f"matmul_{variant}_{layout}_{sums}_")
    assert reduction == f"matmul_reduce_{dtype}"


@families
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_split_k_repeats_its_bits(family: str, dtype: str) -> None:
    a, b = laid_out("contiguous", dtype, 20, 4096), laid_out("contiguous", dtype, 4096, 24, seed=1)
    first, kernels = run(mt.matmul, family, a, b, check=False)
    assert len(kernels) == 2
    for order in ("reverse", "shuffled"):
        again, _ = run(mt.matmul, family, a, b, check=False, order=order)
        assert mx.array_equal(first, again)


def test_a_long_k_is_split_where_tiles_fill_the_gpu() -> None:
    a, b = laid_out("contiguous", "bfloat16", 130, 8200), laid_out("contiguous", "bfloat16", 8200, 644, seed=1)
    product, reduction = check_matmul(
        "tensorops", "bfloat16", a, b, check=False, bias=laid_out("contiguous", "bfloat16", 644)
    )
    assert product == "matmul_tensorops_nn_bfloat16_sums_128x64"
    assert reduction == "matmul_reduce_bfloat16"


@families
@dtypes
@pytest.mark.parametrize("activation", [None, "relu", "silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize(("M", "N"), [(66, 68), (37, 71)])
def test_epilogue(family: str, dtype: str, activation: str | None, M: int, N: int) -> None:
    a, b = laid_out("contiguous", dtype, M, 20), laid_out("contiguous", dtype, 20, N)
    for c_layout in ("contiguous", "transposed"):
        check_matmul(
            family,
            dtype,
            a,
            b,
            c=laid_out(c_layout, dtype, M, N, seed=2),
            bias=laid_out("contiguous", dtype, N),
            alpha=0.7,
            beta=-1.3,
            activation=activation,
        )


@families
@dtypes
@pytest.mark.parametrize("residual_shape", [(2, 33, 72), (33, 72), (2, 33, 1), (72,)])
def test_linear_with_residual(family: str, dtype: str, residual_shape: tuple[int, ...]) -> None:
    x = laid_out("contiguous", dtype, 2, 33, 47)
    weight = laid_out("contiguous", dtype, 72, 47)
    addends = {
        "bias": laid_out("contiguous", dtype, 72),
        "residual": laid_out("contiguous", dtype, *residual_shape, seed=3),
    }
    result, (kernel,) = run(mt.linear, family, x, weight, activation="gelu", precision="exact", **addends)
    assert "_nt_" in kernel
    exact = {name: float64(addend) for name, addend in addends.items()}
    expected, magnitude = linear_oracle(float64(x), float64(weight), activation="gelu", **exact)
    assert_close(result, expected, magnitude, dtype, 47)


@families
@dtypes
@pytest.mark.parametrize(("a_layout", "b_layout"), list(itertools.product(LAYOUTS, LAYOUTS)))
def test_operands_as_they_lie(family: str, dtype: str, a_layout: str, b_layout: str) -> None:
    a, b = laid_out(a_layout, dtype, 2, 37, 24), laid_out(b_layout, dtype, 2, 24, 36)
    kernels = check_matmul(family, dtype, a, b, c=laid_out(b_layout, dtype, 37, 36), beta=0.5)
    copied = sum(layout in ("strided", "reversed") for layout in (a_layout, b_layout))
    assert [kernel.startswith("copy_strided_") for kernel in kernels] == [True] * copied + [False]


@families
@dtypes
@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    [
        ((3, 2, 20, 11), (3, 2, 11, 18)),
        ((5, 20, 11), (11, 18)),
        ((5, 1, 11), (11, 18)),
        ((20, 11), (4, 11, 18)),
        ((3, 1, 7, 12), (2, 12, 5)),
        ((2, 1, 3, 1, 7, 8), (1, 2, 1, 2, 8, 5)),
    ],
)
def test_batches(family: str, dtype: str, a_shape: tuple[int, ...], b_shape: tuple[int, ...]) -> None:
    check_matmul(family, dtype, laid_out("contiguous", dtype, *a_shape), laid_out("contiguous", dtype, *b_shape))


@families
@pytest.mark.parametrize("c_shape", [(2, 3, 7, 12), (3, 7, 1), (2, 1, 1, 12), (12,)])
def test_addends_stride_through_the_batch_on_their_own(family: str, c_shape: tuple[int, ...]) -> None:
    a, b = laid_out("contiguous", "float32", 2, 3, 7, 16), laid_out("contiguous", "float32", 3, 16, 12)
    addends = {"c": laid_out("contiguous", "float32", *c_shape), "bias": laid_out("contiguous", "float32", 12)}
    check_matmul(family, "float32", a, b, beta=1.5, **addends)


@families
@dtypes
@pytest.mark.parametrize("batch", [(), (3,)])
def test_no_k(family: str, dtype: str, batch: tuple[int, ...]) -> None:
    a, b = mx.zeros((*batch, 20, 0), DTYPES[dtype]), mx.zeros((0, 12), DTYPES[dtype])
    addends = {"c": laid_out("transposed", dtype, 20, 12), "bias": laid_out("contiguous", dtype, 12)}
    check_matmul(family, dtype, a, b, beta=2.0, activation="gelu", **addends)
    result, _ = run(mt.matmul, family, a, b)
    assert np.all(float64(result) == 0)


@families
@pytest.mark.parametrize(
    ("M", "N", "K", "layout"),
    [
        (32 * 64 + 5, 65 * 64, 2, "contiguous"),  # panels, the last one lower
        (17 * 128 + 70, 120 * 64 - 3, 2, "contiguous"),
        (70, 520, 16200, "transposed"),  # a band
    ],
)
def test_grid_walks(family: str, M: int, N: int, K: int, layout: str) -> None:
    a, b = laid_out("contiguous", "bfloat16", M, K), laid_out(layout, "bfloat16", K, N)
    check_matmul(family, "bfloat16", a, b, check=False, order="shuffled")


@families
def test_activations_over_their_range(family: str) -> None:
    x = np.linspace(-20, 20, 4001, dtype=np.float32)
    column, one = mx.array(x[:, None]), mx.ones((1, 1))
    exact = x.astype(np.float64)
    # Bounds on |error| / max(|x|, 1), in units of 2^-24; seen: silu 2.4, gelu 1.5, gelu_tanh 2.3.
    bounds = {"relu": 0.0, "silu": 3.0, "gelu": 2.0, "gelu_tanh": 3.0}
    for activation, bound in bounds.items():
        result, _ = run(mt.matmul, family, column, one, activation=activation, precision="exact")
        expected, _ = matmul_oracle(exact[:, None], np.ones((1, 1)), activation=activation)
        error = np.abs(float64(result) - expected)[:, 0] / np.maximum(np.abs(exact), 1)
        assert np.max(error) <= bound * 2.0**-24, activation


@families
@pytest.mark.parametrize("activation", [None, "relu", "silu", "gelu", "gelu_tanh"])
def test_infinity_and_nan(family: str, activation: str | None) -> None:
    x = mx.array([[math.inf], [math.nan], [3.0e38], [-3.0e38]])
    result, _ = run(mt.matmul, family, x, mx.ones((1, 1)), activation=activation, precision="exact")
    infinite, nan, large, small = float64(result)[:, 0]
    assert infinite == math.inf
    assert math.isnan(nan)
    assert large == pytest.approx(3.0e38)
    assert small == (0 if activation else pytest.approx(-3.0e38))


@families
@dtypes
def test_a_nan_stays_in_its_row_and_column(family: str, dtype: str) -> None:
    a, b = values(70, 45), values(45, 67)
    a[13, 44] = np.nan
    b[0, 50] = np.inf
    result, _ = run(mt.matmul, family, mx.array(a, DTYPES[dtype]), mx.array(b, DTYPES[dtype]), precision="exact")
    finite = np.isfinite(float64(result))
    expected = np.ones((70, 67), bool)
    expected[13, :] = expected[:, 50] = False
    assert np.array_equal(finite, expected)


@families
def test_beta_zero_reads_no_c(family: str) -> None:
    a, b = laid_out("contiguous", "float32", 33, 20), laid_out("contiguous", "float32", 20, 17)
    result, _ = run(mt.matmul, family, a, b, c=mx.full((33, 17), math.nan), beta=0.0)
    assert np.all(np.isfinite(float64(result)))


@families
@dtypes
@pytest.mark.parametrize(("N", "K"), [(64, 96), (45, 133)])
def test_batch_invariant_rows(family: str, dtype: str, N: int, K: int) -> None:
    a, b = laid_out("contiguous", dtype, 150, K), laid_out("contiguous", dtype, K, N)
    every_row, _ = run(mt.matmul, family, a, b, batch_invariant=True, precision="exact")
    for rows in (slice(0, 1), slice(7, 40), slice(20, 149)):
        some_rows, _ = run(mt.matmul, family, a[rows], b, batch_invariant=True, precision="exact")
        assert mx.array_equal(some_rows, every_row[rows])
