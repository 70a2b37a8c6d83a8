"""The quantized_matmul shaders, run from their source in the emulator with every check on, against float64."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import mlx_tessl as mt

from ..ops.conformance.quantized import quantized_embedding_oracle, quantized_matmul_oracle
from ..ops.layouts import LAYOUTS
from ..ops.quantization import AFFINE, FORMATS, MICROSCALED, Format, random_scale_codes, random_words

DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
UNIT_ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
TINY = {"float32": 2.0**-126, "float16": 2.0**-25, "bfloat16": 2.0**-126}
# Devices on which each kind of kernel is chosen, given enough rows.
DEVICES = {
    "portable": ("m1", "15.0"),
    "staged": ("m5-pro", "26.2"),
    "direct": ("m5-pro", "26.4"),
    "native": ("m5", "27.0"),
}
TF32 = 2.0**-10  # of an operand, by truncation

dtypes = pytest.mark.parametrize("dtype", DTYPES)
formats = pytest.mark.parametrize("format", FORMATS, ids=str)

AFFINE4 = Format("affine", 4, 64)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def float64(x: mx.array) -> np.ndarray:
    if x.dtype in (mx.uint32, mx.uint8, mx.int32):
        return np.array(x)
    return np.array(x.astype(mx.float32)).astype(np.float64)


def packed(format: Format, dtype: str, *rows: int, columns: int, layout: str = "contiguous") -> dict[str, mx.array]:
    groups = columns // format.group_size
    lay = LAYOUTS[layout]
    arrays = {"w": lay(random_words(format, rows, columns), mx.uint32)}
    if format.affine:
        scale = np.float32(0.5**format.bits)
        arrays["scales"] = lay(normal(*rows, groups, seed=1) * scale, DTYPES[dtype])
        arrays["biases"] = lay(normal(*rows, groups, seed=2), DTYPES[dtype])
    else:
        arrays["scales"] = lay(random_scale_codes(format, rows, groups), mx.uint8)
    return arrays


def run(
    device: str, op: Any, arrays: dict[str, mx.array], check: bool = True, order: str = "forward", **keywords: Any
) -> tuple[mx.array, list[str]]:
    """The result of an op on a device, and the kernels that computed it."""
    mx.eval(*arrays.values())
    gpu, macos = DEVICES[device]
    with mt.trace() as entries:
        with mt.emulate(gpu, macos, check=check, order=order, seed=1):  # type: ignore[arg-type]
            result = op(**arrays, stream=mx.cpu, **keywords)
        mx.eval(result)
    (entry,) = entries
    assert entry.backend == "emulator"
    return result, [launch.kernel for launch in entry.launches]


def check_product(
    device: str,
    dtype: str,
    format: Format,
    arrays: dict[str, mx.array],
    *,
    check: bool = True,
    precision: str = "exact",
    **keywords: Any,
) -> str:
    """Holds a product to float64; gives its kernel.

    Allowed are K + 16 float32 roundings of the sum of magnitudes, one rounding of each weight to the dtype outside of
    the vector kernels, tf32 of both operands where precision is relaxed, and one rounding of the result.
    """
    everything = {**format.keywords, **keywords}
    result, kernels = run(device, mt.quantized_matmul, arrays, check, precision=precision, **everything)
    expected, magnitude = quantized_matmul_oracle(**{n: float64(x) for n, x in arrays.items()}, **everything)
    assert result.shape == expected.shape
    assert result.dtype == DTYPES[dtype]
    relaxed = precision == "relaxed" and dtype == "float32"
    operand_error = 2 * TF32 if relaxed else 0.0 if "_vector_" in kernels[-1] else UNIT_ROUNDOFF[dtype]
    K = arrays["x"].shape[-1]
    allowed = 1.13 * ((K + 16) * 2.0**-24 + operand_error) * magnitude + UNIT_ROUNDOFF[dtype] * np.abs(expected)
    error = np.abs(float64(result) - expected)
    assert np.all(error <= allowed + TINY[dtype]), np.max(error / (allowed + TINY[dtype]))
    return kernels[-1]


def product(
    device: str,
    dtype: str,
    format: Format,
    M: int,
    N: int,
    K: int,
    *,
    transpose: bool = True,
    x_layout: str = "contiguous",
    **keywords: Any,
) -> str:
    rows, columns = (N, K) if transpose else (K, N)
    arrays = {"x": LAYOUTS[x_layout](normal(M, K), DTYPES[dtype]), **packed(format, dtype, rows, columns=columns)}
    if "bias" in keywords:
        arrays["bias"] = mx.array(normal(N, seed=3)).astype(DTYPES[dtype])
        del keywords["bias"]
    return check_product(device, dtype, format, arrays, transpose=transpose, **keywords)


@formats
@dtypes
@pytest.mark.parametrize("transpose", [True, False])
def test_vector_kernels_decode_every_format(format: Format, dtype: str, transpose: bool) -> None:
    group = format.group_size
    for M, N, K in ((1, 7, 3 * group), (3, 2 * group, 5 * group)):
        N = N if transpose else 3 * group
        kernel = product("portable", dtype, format, M, N, K, transpose=transpose)
        assert f"_vector_{'nt' if transpose else 'nn'}_{dtype}_" in kernel


@formats
@dtypes
@pytest.mark.parametrize("transpose", [True, False])
@pytest.mark.parametrize("device", ["portable", "staged", "direct"])
def test_tiled_kernels_decode_every_format(format: Format, dtype: str, transpose: bool, device: str) -> None:
    group = format.group_size
    N = 37 if transpose else 3 * group
    kernel = product(device, dtype, format, 43, N, 3 * group, transpose=transpose, precision="relaxed")
    assert f"_{device}_{'nt' if transpose else 'nn'}_{dtype}_" in kernel


@pytest.mark.parametrize("mode", ["mxfp4", "mxfp8"])
@pytest.mark.parametrize(("M", "N", "K"), [(43, 37, 96), (40, 64, 544), (64, 1, 32), (130, 200, 64), (200, 1300, 32)])
def test_native_kernels(mode: str, M: int, N: int, K: int) -> None:
    format = Format(mode, 4 if mode == "mxfp4" else 8, 32)
    kernel = product("native", "float16", format, M, N, K, bias=True, activation="silu")
    assert kernel.startswith(f"quantized_matmul_{mode}_float16_")


@dtypes
@pytest.mark.parametrize("M", [1, 2, 3, 4, 5, 8, 9, 13])
def test_vector_rows(dtype: str, M: int) -> None:
    kernel = product("portable", dtype, AFFINE4, M, 21, 320, bias=True, activation="gelu")
    assert kernel == f"quantized_matmul_vector_nt_{dtype}_{next(r for r in (1, 2, 4, 8, 16) if r >= M)}"


@pytest.mark.parametrize("M", [17, 32])
def test_vector_rows_of_m5(M: int) -> None:
    assert product("direct", "bfloat16", AFFINE4, M, 21, 320).endswith("_vector_nt_bfloat16_32")


@dtypes
@pytest.mark.parametrize("N", [1, 4, 7, 8, 31, 32, 33, 63, 64, 65, 96, 127])
def test_every_column_is_written(dtype: str, N: int) -> None:
    for device in ("portable", "staged", "direct"):
        product(device, dtype, AFFINE4, 2, N, 64, precision="relaxed")
        product(device, dtype, AFFINE4, 40, N, 64, precision="relaxed", check=N < 64)


@pytest.mark.parametrize("format", [Format("affine", 4, 32), Format("nvfp4", 4, 16), Format("mxfp8", 8, 32)], ids=str)
@pytest.mark.parametrize("groups", [1, 2, 3, 5, 7, 17])
@pytest.mark.parametrize("device", ["portable", "staged", "direct"])
def test_tails_of_k_follow_the_group(format: Format, groups: int, device: str) -> None:
    product(device, "float16", format, 2, 9, groups * format.group_size)
    product(device, "float16", format, 40, 9, groups * format.group_size)


@pytest.mark.parametrize("K", [1, 2, 15, 16, 17, 31, 33, 64, 65, 130])
@pytest.mark.parametrize("device", ["portable", "staged", "direct"])
def test_any_k_of_plain_weights(K: int, device: str) -> None:
    for M in (1, 4, 5, 40):
        product(device, "bfloat16", AFFINE4, M, 64, K, transpose=False)


@pytest.mark.parametrize(
    ("device", "M", "N", "transpose", "tile"),
    [
        *(("portable", 33, 40, transpose, "32x32") for transpose in (True, False)),
        ("portable", 200, 200, True, "64x32"),
        ("portable", 200, 200, False, "64x64"),
        *(("direct", 33, 200, transpose, "64x128") for transpose in (True, False)),
        *(("staged", 65, 200, transpose, "64x64") for transpose in (True, False)),
        *(("staged", 200, 1300, transpose, "128x64") for transpose in (True, False)),
        *(("direct", 100, 200, transpose, "64x64") for transpose in (True, False)),  # staged: beyond a row of tiles
    ],
)
def test_tiles(device: str, M: int, N: int, transpose: bool, tile: str) -> None:
    N = N if transpose else (N + 31) // 32 * 32
    format = Format("affine", 4, 32)
    kernel = product(device, "float16", format, M, N, 32, transpose=transpose, bias=True, activation="relu")
    assert kernel.endswith(tile)


def test_the_lower_direct_tile() -> None:
    # M5 takes vectors below 33 rows unless the weights are wide.
    assert product("direct", "float16", AFFINE4, 20, 4100, 64, check=False).endswith("direct_nt_float16_32x128")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("device", ["portable", "staged", "direct", "native"])
@pytest.mark.parametrize("M", [2, 40])
def test_operands_as_they_lie(layout: str, device: str, M: int) -> None:
    for format in (AFFINE4, Format("mxfp8", 8, 32)):
        arrays = {
            "x": LAYOUTS[layout](normal(M, 128), mx.float16),
            **packed(format, "float16", 9, columns=128, layout=layout),
        }
        check_product(device, "float16", format, arrays)


@pytest.mark.parametrize(
    ("x", "rows"), [((2, 5, 64), (9,)), ((2, 1, 64), (2, 9)), ((40, 64), (3, 9)), ((3, 1, 4, 64), (2, 9))], ids=str
)
@pytest.mark.parametrize("device", ["portable", "staged", "direct", "native"])
def test_batches(x: tuple[int, ...], rows: tuple[int, ...], device: str) -> None:
    for format in (AFFINE4, Format("mxfp4", 4, 32)):
        arrays = {"x": mx.array(normal(*x)).astype(mx.float16), **packed(format, "float16", *rows, columns=64)}
        arrays["bias"] = mx.array(normal(9, seed=3)).astype(mx.float16)
        check_product(device, "float16", format, arrays)


@pytest.mark.parametrize("device", ["portable", "staged", "direct"])
@pytest.mark.parametrize("M", [2, 40])
def test_no_k(device: str, M: int) -> None:
    arrays = {"x": mx.zeros((M, 0)), **packed(AFFINE4, "float32", 0, columns=64), "bias": mx.array(normal(64))}
    check_product(device, "float32", AFFINE4, arrays, transpose=False, activation="silu", precision="relaxed")


@pytest.mark.parametrize("device", ["portable", "staged", "direct"])
@pytest.mark.parametrize("M", [3, 40])
def test_a_nan_stays_in_its_row(device: str, M: int) -> None:
    x = normal(M, 144)
    x[1, 143] = np.nan
    arrays = {"x": mx.array(x).astype(mx.float16), **packed(Format("nvfp4", 4, 16), "float16", 9, columns=144)}
    result, _ = run(device, mt.quantized_matmul, arrays, mode="nvfp4")
    nan_rows = np.isnan(float64(result))
    assert nan_rows[1].all()
    assert nan_rows.sum() == 9


@pytest.mark.parametrize(
    ("format", "dtype"),
    [*((f, dtype) for f in AFFINE for dtype in DTYPES), *((f, "bfloat16") for f in MICROSCALED)],
    ids=str,
)
def test_embedding(format: Format, dtype: str) -> None:
    ids = mx.array(np.array([[3, 0, -1], [5, -6, 2**31 - 1]], np.int32))
    for layout in ("contiguous", "strided"):
        table = packed(format, dtype, 5, columns=3 * format.group_size, layout=layout)
        result, kernels = run("portable", mt.quantized_embedding, {"ids": ids, **table}, **format.keywords)
        assert kernels[-1] == f"quantized_embedding_{dtype}"
        expected, magnitude = quantized_embedding_oracle(
            float64(ids), **{n: float64(x) for n, x in table.items()}, **format.keywords
        )
        allowed = 2 * 2.0**-24 * magnitude + UNIT_ROUNDOFF[dtype] * np.abs(expected) + TINY[dtype]
        assert np.all(np.abs(float64(result) - expected) <= allowed)
