"""matmul2d, tensors and cooperative tensors: what they compute, and their traps."""

from __future__ import annotations

import struct

import ml_dtypes
import numpy as np
import pytest

from mlx_tessl.emulator.compiler import CompileError
from mlx_tessl.emulator.runtime import EmulatorError, Out, Source, Updated

from .harness import file, metal

bfloat16 = ml_dtypes.bfloat16
DTYPES = {"float": np.float32, "half": np.float16, "bfloat": bfloat16, "char": np.int8, "int": np.int32}


def source(*defines: str) -> Source:
    return file("matmul2d", 400, *defines)


def problem(M: int, N: int, K: int, lda: int | None = None, ldb: int | None = None, ldc: int | None = None) -> bytes:
    return struct.pack("6i", M, N, K, lda or K, ldb or N, ldc or N)


def operand(rows: int, cols: int, dtype: type, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng([seed, rows, cols])
    if np.dtype(dtype).kind == "i":
        return rng.integers(-128, 128, (rows, cols)).astype(dtype)
    return rng.standard_normal((rows, cols)).astype(dtype)


def stored(matrix: np.ndarray, transposed: bool, pad: int = 0) -> tuple[np.ndarray, int]:
    """The matrix or its transpose with `pad` elements between rows, which hold NaN or junk; and the row pitch."""
    laid_out = matrix.T if transposed else matrix
    rows, cols = laid_out.shape
    buffer = np.full((rows, cols + pad), 77 if matrix.dtype.kind == "i" else np.nan).astype(matrix.dtype)
    buffer[:, :cols] = laid_out
    # Nothing follows the last row.
    return np.ascontiguousarray(buffer).reshape(-1)[: rows * (cols + pad) - pad], cols + pad


def exact(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a.astype(np.float64) @ b.astype(np.float64)


def assert_close(result: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    """Within K float32 roundings of the sum of magnitudes, and one rounding to the destination. Seen: 0.1 of it."""
    K = a.shape[1]
    magnitude = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
    expected = exact(a, b)
    unit = {np.dtype(np.float16): 2.0**-11, np.dtype(bfloat16): 2.0**-8}.get(result.dtype, 0.0)
    allowed = K * 2.0**-24 * magnitude + unit * np.abs(expected)
    assert np.all(np.abs(result.astype(np.float64) - expected) <= allowed * 1.01)


@pytest.mark.parametrize(
    ("types", "layout"),
    [
        *(("half_float", layout) for layout in ("nn", "nt", "tn", "tt")),
        *((types, "nn") for types in ("float_float", "half_half", "bfloat_float", "bfloat_bfloat", "char_int")),
    ],
)
def test_types_and_layouts(types: str, layout: str) -> None:
    M, N, K = 70, 45, 37
    T, D = (DTYPES[name] for name in types.split("_"))
    a, b = operand(M, K, T), operand(K, N, T, 1)
    (a_buffer, lda), (b_buffer, ldb) = stored(a, layout[0] == "t", 3), stored(b, layout[1] == "t", 5)
    out = np.zeros((M, N), D)
    arguments = [a_buffer, b_buffer, Out(out), problem(M, N, K, lda, ldb)]
    source().launch(f"slices_{types}_{layout}", arguments, grid=(2, 2), group=128, check=True, seed=5)
    if D is np.int32:
        assert np.array_equal(out, a.astype(np.int64) @ b.astype(np.int64))
    else:
        assert_close(out, a, b)


@pytest.mark.parametrize(
    ("kernel", "M", "N", "threads"), [("one_simdgroup", 32, 32, 32), ("three_simdgroups", 48, 40, 96)]
)
def test_scopes(kernel: str, M: int, N: int, threads: int) -> None:
    a, b, out = operand(100, 64, np.float16), operand(64, 90, np.float16), np.zeros((100, 90), np.float32)
    grid = (-(-90 // N), -(-100 // M))
    source().launch(f"slices_{kernel}", [a, b, Out(out), problem(100, 90, 64)], grid=grid, group=threads, check=True)
    assert_close(out, a, b)


def test_int8_wraps() -> None:
    K = 1 << 18
    a, b, out = np.full((1, K), -128, np.int8), np.full((K, 1), -128, np.int8), np.zeros((1, 1), np.int32)
    source().launch("slices_char_int_nn", [a, b, Out(out), problem(1, 1, K)], grid=1, group=128)
    assert out[0, 0] == np.int64(K * 128 * 128).astype(np.int32)


def test_relaxed_float_keeps_ten_bits_of_the_mantissa() -> None:
    a = (1 + np.arange(32 * 32, dtype=np.float32).reshape(32, 32) * 2.0**-13).astype(np.float32)
    out = np.zeros((32, 32), np.float32)
    eye = np.eye(32, dtype=np.float32)
    for sign in (1, -1):
        source().launch("slices_relaxed", [sign * a, eye, Out(out), problem(32, 32, 32)], grid=1, group=128)
        truncated = (a.view(np.uint32) & 0xFFFFE000).view(np.float32)
        assert np.array_equal(out, sign * truncated)
        assert not np.array_equal(truncated, a)


def test_half_destination_is_rounded_once() -> None:
    # 2048 + 1 + 1 in half would stay 2048 at each step.
    a, out = np.array([[2048, 1, 1, 0]], np.float16), np.zeros((1, 1), np.float16)
    source().launch(
        "slices_half_half_nn", [a, np.ones((4, 1), np.float16), Out(out), problem(1, 1, 4)], grid=1, group=128
    )
    assert out[0, 0] == 2050


def test_accumulating_to_device_memory() -> None:
    a, b = operand(40, 24, np.float16), operand(24, 50, np.float16)
    before = operand(40, 50, np.float32, 2)
    out = before.copy()
    source().launch(
        "accumulate_to_device", [a, b, Updated(out), problem(40, 50, 24)], grid=(2, 2), group=64, check=True
    )
    assert np.allclose(out, before + exact(a, b), atol=1e-5)


def test_staging_in_threadgroup_memory() -> None:
    a, b, out = operand(30, 75, np.float16), operand(75, 31, np.float16), np.zeros((30, 31), np.float32)
    source().launch("staged", [a, b, Out(out), problem(30, 31, 75)], grid=1, group=64, check=True)
    assert_close(out, a, b)


def test_each_thread_a_product_of_its_own() -> None:
    a, b, out = operand(48, 10, np.float32), operand(10, 8, np.float32), np.zeros((48, 8), np.float32)
    source().launch("one_thread", [a, b, Out(out), problem(16, 8, 10)], grid=1, group=3, check=True)
    assert_close(out, a, b)


def test_a_row_stride_of_zero_broadcasts() -> None:
    a, b = operand(32, 16, np.float16), operand(16, 32, np.float16)
    bias, out = operand(1, 32, np.float32, 3)[0], np.zeros((32, 32), np.float32)
    source().launch("broadcast_bias", [a, b, Out(out), problem(32, 32, 16), bias], grid=1, group=64, check=True)
    assert np.allclose(out, exact(a, b) + bias, atol=1e-5)


def test_tensors_made_by_the_host() -> None:
    a, b, out = operand(40, 20, np.float16), operand(20, 50, np.float16), np.zeros((40, 50), np.float32)

    def handle(buffer: int, matrix: np.ndarray) -> bytes:
        rows, cols = matrix.shape
        return struct.pack("IIQ4q4q", buffer, 2, 0, cols, rows, 0, 0, 1, cols, 0, 0)

    buffers = [handle(10, a), handle(11, b), handle(12, out), *[None] * 7, a, b, Out(out)]
    source().launch("handles", buffers, grid=(2, 2), group=64, check=True)
    assert_close(out, a, b)


# Cooperative tensors --------------------------------------------------------------------------------------------------


def test_an_accumulator_that_nobody_zeroed_is_nan() -> None:
    a, b, out = operand(16, 8, np.float16), operand(8, 32, np.float16), np.zeros((16, 32), np.float32)
    source().launch("not_zeroed", [a, b, Out(out), problem(16, 32, 8)], grid=1, group=32)
    assert np.isnan(out).all()


@pytest.mark.parametrize(("M", "N", "K"), [(16, 32, 16), (16, 32, 48), (11, 29, 21)])
def test_cooperative_operands(M: int, N: int, K: int) -> None:
    a, b, out = operand(M, K, np.float16), operand(N, K, np.float16), np.zeros((M, N), np.float32)
    source().launch("cooperative_operands", [a, b, Out(out), problem(M, N, K, K, K)], grid=1, group=32, check=True)
    assert_close(out, a, b.T)


def test_the_measured_layout() -> None:
    capacities = {"left": 8, "right": 16, "transposed": 16, "destination": 16}
    outs = {name: np.zeros((32, capacity, 2), np.int32) for name, capacity in capacities.items()}
    source().launch("measured_layout", [Out(out) for out in outs.values()], grid=1, group=32)
    lane, i = np.arange(32)[:, None], np.arange(16)[None]
    qid = lane >> 2
    fm, fn = (qid & 4) | ((lane >> 1) & 3), ((qid & 2) | (lane & 1)) * 4
    left = np.stack(np.broadcast_arrays(fm + (i[:, :8] >> 2) * 8, fn + (i[:, :8] & 3)), -1)
    wide = np.stack(np.broadcast_arrays(fm + ((i >> 2) & 1) * 8, fn + (i & 3) + (i >> 3) * 16), -1)
    tall = np.stack(np.broadcast_arrays(fm + ((i >> 2) & 1) * 8 + (i >> 3) * 16, fn + (i & 3)), -1)
    for name, expected in {"left": left, "right": wide, "transposed": tall, "destination": wide}.items():
        assert np.array_equal(outs[name], expected), name


def test_other_layouts_are_drawn_anew_and_hold_each_element_once() -> None:
    capacity, places = 64, []
    for seed in (1, 2):
        out = np.zeros((64, capacity, 2), np.int32)
        source().launch("opaque_layout", [Out(out), np.uint32(capacity)], grid=1, group=64, seed=seed)
        held = out[out[..., 0] >= 0]
        assert len(held) == 64 * 32
        assert len(np.unique(held, axis=0)) == 64 * 32
        assert (out[:, :36, 0] < 0).sum() == 64 * 4  # slots that hold nothing, somewhere among the others
        places.append(out)
    assert not np.array_equal(*places)


@pytest.mark.parametrize("seed", [0, 7])
def test_softmax_by_reductions(seed: int) -> None:
    a, b, out = operand(32, 40, np.float16), operand(64, 40, np.float16), np.zeros((32, 64), np.float32)
    source().launch(
        "softmax_rows", [a, b, Out(out), problem(32, 64, 40, 40, 40)], grid=1, group=32, check=True, seed=seed
    )
    scores = exact(a, b.T)
    expected = np.exp(scores - scores.max(1, keepdims=True))
    expected /= expected.sum(1, keepdims=True)
    assert np.allclose(out, expected, rtol=2e-5, atol=1e-7)  # seen: 3e-6


def test_a_maximum_without_identity_starts_at_zero() -> None:
    a, b = -np.abs(operand(16, 8, np.float16)), np.abs(operand(32, 8, np.float16))
    rows, columns = np.zeros(16, np.float32), np.zeros(32, np.float32)
    arguments = [a, b, Out(rows), Out(columns), problem(16, 32, 8, 8, 8)]
    source().launch("reduce_max", arguments, grid=1, group=32)
    assert np.all(rows == 0)
    assert np.allclose(columns, exact(a, b.T).max(0), atol=1e-5)
    assert np.all(columns < 0)


def test_a_destination_becomes_an_input() -> None:
    a, b, c = operand(16, 16, np.float32), operand(16, 32, np.float32), operand(32, 16, np.float32)
    out, compatible = np.zeros((16, 16), np.float32), np.zeros(1, np.int32)
    source().launch("chained", [a, b, c, Out(out), Out(compatible)], grid=1, group=32, seed=3)
    assert np.allclose(out, exact(a, b) @ c.astype(np.float64), atol=1e-4)
    assert compatible[0] == 1


# Slices ---------------------------------------------------------------------------------------------------------------


def test_static_slices_inside_of_their_tensor() -> None:
    a, b, out = operand(16, 64, np.float16), operand(64, 32, np.float16), np.zeros((16, 32), np.float32)
    source().launch("static_slices", [a, b, Out(out), problem(16, 32, 64)], grid=1, group=32, check=True)
    assert_close(out, a, b)


def test_a_static_slice_past_the_end_of_k_gives_nan_and_is_reported() -> None:
    a, b, out = operand(16, 40, np.float16), operand(40, 32, np.float16), np.zeros((16, 32), np.float32)
    arguments = [a, b, Out(out), problem(16, 32, 40)]
    source().launch("static_slices", arguments, grid=1, group=32)
    assert np.isnan(out).all()
    with pytest.raises(
        EmulatorError, match=r"past the end of its left operand: a static slice of 32 by 16 where 8 by 16 are left"
    ):
        source().launch("static_slices", arguments, grid=1, group=32, check=True)


def test_static_slices_past_the_other_edges_are_reported() -> None:
    a, b, out = operand(10, 32, np.float16), operand(32, 20, np.float16), np.zeros((10, 20), np.float32)
    arguments = [a, b, Out(out), problem(10, 20, 32)]
    source().launch("static_slices", arguments, grid=1, group=32)
    assert_close(out, a, b)  # what lies outside is not stored
    with pytest.raises(EmulatorError, match="where 32 by 10 are left"):
        source().launch("static_slices", arguments, grid=1, group=32, check=True)


def test_a_store_through_a_static_slice_is_not_masked() -> None:
    text = """
    kernel void store(device float* c [[buffer(0)]]) {
      matrix<float> C(c, dextents<int, 2>(20, 16));
      matmul2d<matmul2d_descriptor(16, 32), execution_simdgroup> op;
      auto acc = op.get_destination_cooperative_tensor<matrix<half>, matrix<half>, float>();
      acc.store(C.slice<32, 16>(0, 0));
    }
    """
    with pytest.raises(EmulatorError, match="store through a static slice"):
        metal(text, 400).launch("store", [Out(np.zeros((16, 20), np.float32))], grid=1, group=32)


def test_a_slice_that_starts_beyond_two_gigabytes_is_refused() -> None:
    text = """
    kernel void far(device half* a [[buffer(0)]]) {
      matrix<half> A(a, dextents<int, 2>(1 << 16, 1 << 16), array<int, 2>{1, 1 << 16});
      auto tile = A.slice(0, 1 << 14);
      a[0] = tile.get_extent(0);
    }
    """
    with pytest.raises(EmulatorError, match="from 2 GB on"):
        metal(text, 400).launch("far", [Updated(np.zeros(4, np.float16))], grid=1, group=1)


# Misuse ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "threads", "message"),
    [
        ("subset", 64, "a subset of the simdgroups reached run"),
        ("subset", 32, r"execution_simdgroups<2> in a threadgroup of 1 simdgroups"),
        ("some_lanes", 32, "reached by some lanes only"),
        ("slices_half_float_nn", 64, r"execution_simdgroups<4> in a threadgroup of 2 simdgroups"),
    ],
)
def test_run_needs_the_whole_scope(kernel: str, threads: int, message: str) -> None:
    a, b, out = operand(32, 16, np.float16), operand(16, 32, np.float16), np.zeros((32, 32), np.float32)
    with pytest.raises(EmulatorError, match=message):
        source().launch(kernel, [a, b, Out(out), problem(32, 32, 16)], grid=1, group=threads)


RUN = """
  matmul2d<{descriptor}, execution_simdgroups<{simdgroups}>> op;
  matrix<{L}> A(nullptr, dextents<int, 2>(16, 16));
  matrix<{R}> B(nullptr, dextents<int, 2>(16, 16));
  auto acc = op.get_destination_cooperative_tensor<decltype(A), decltype(B), {D}>();
  op.run(A, B, acc);
"""
LEGAL = {"descriptor": "matmul2d_descriptor(16, 32)", "simdgroups": "1", "L": "half", "R": "half", "D": "float"}


def compile_run(body: str, msl: int = 400) -> None:
    kernel = f"kernel void misuse(device float* out [[buffer(0)]]) {{ {body} out[0] = 0; }}"
    compiled = metal(kernel, msl)
    compiled._library("misuse", False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, None),
        ({"descriptor": "matmul2d_descriptor(8, 8)"}, "at least one of M and N must be a multiple of 16"),
        ({"descriptor": "matmul2d_descriptor(16, 4)"}, "N must be a multiple of 8"),
        ({"descriptor": "matmul2d_descriptor(16, 32, 8)"}, "K must be dynamic or a multiple of 16"),
        ({"L": "const half", "R": "const half"}, "strip const"),
        ({"D": "half"}, None),
        ({"D": "bfloat"}, "does not take these element types"),
        ({"L": "bfloat", "R": "bfloat", "D": "half"}, "does not take these element types"),
        ({"L": "bfloat", "R": "half", "D": "half"}, None),
        ({"L": "float", "R": "half", "D": "half"}, "does not take these element types"),
        ({"L": "int", "R": "int", "D": "int"}, "does not take these element types"),
        ({"L": "char", "R": "uchar", "D": "int"}, "does not take these element types"),
        ({"L": "half", "R": "char", "D": "half"}, None),
    ],
)
def test_what_a_compiler_refuses(change: dict[str, str], message: str | None) -> None:
    body = RUN.format(**(LEGAL | change))
    if message is None:
        compile_run(body)
    else:
        with pytest.raises(CompileError, match=message):
            compile_run(body)


def test_inputs_of_several_simdgroups_do_not_compile() -> None:
    body = """
      matmul2d<matmul2d_descriptor(32, 32, 16), execution_simdgroups<2>> op;
      auto left = op.get_left_input_cooperative_tensor<half, half, float>();
    """
    with pytest.raises(CompileError, match="need a single simdgroup"):
        compile_run(body)


def test_operands_in_another_order_than_the_destination_says_do_not_compile() -> None:
    body = RUN.format(**(LEGAL | {"L": "half", "R": "bfloat"})).replace("op.run(A, B, acc)", "op.run(B, A, acc)")
    with pytest.raises(CompileError, match="Input types must match"):
        compile_run(body)


def test_load_and_store_do_not_convert() -> None:
    body = """
      matmul2d<matmul2d_descriptor(16, 32), execution_simdgroup> op;
      auto acc = op.get_destination_cooperative_tensor<matrix<half>, matrix<half>, float>();
      matrix<half> C(nullptr, dextents<int, 2>(32, 16));
      acc.store(C);
    """
    with pytest.raises(CompileError, match="element types must be identical"):
        compile_run(body)


def test_portable_sources_have_no_tensors() -> None:
    text = """
    #ifdef __HAVE_TENSOR__
    #error tensors in MSL 3.1
    #endif
    kernel void plain(device float* out [[buffer(0)]]) { out[0] = __METAL_VERSION__; }
    """
    out = np.zeros(1, np.float32)
    metal(text).launch("plain", [Out(out)], grid=1, group=1)
    assert out[0] == 310


# Formats of macOS 27 --------------------------------------------------------------------------------------------------

FORMATS = """
using namespace metal;
kernel void formats(device half* a [[buffer(0)]], device uchar* b [[buffer(1)]], device float* c [[buffer(2)]]) {{
  constexpr int M = 16, N = 32, K = {K};
  matrix<half> A(a, dextents<int, 2>(K, M));
  tensor<device {format}, dextents<int, 2>, tensor_inline> B(b, dextents<int, 2>(K, N), array<int, 2>{{1, K}});
  matrix<float> C(c, dextents<int, 2>(N, M));
  matmul2d<matmul2d_descriptor(M, N, static_cast<int>(dynamic_extent), false, true), execution_simdgroup> op;
  auto tB = B.slice({k0}, 0);
  auto tA = A.slice({k0}, 0);
  op.run(tA, tB, C);
}}
"""


def packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes of each row, the first in the low bits."""
    per_byte = 8 // bits
    grouped = codes.reshape(codes.shape[0], -1, per_byte).astype(np.uint16)
    return (grouped << (np.arange(per_byte) * bits)).sum(-1).astype(np.uint8)


FORMAT_VALUES = {
    "metal_fp8_e4m3_format": (8, ml_dtypes.float8_e4m3fn),
    "metal_fp8_e5m2_format": (8, ml_dtypes.float8_e5m2),
    "metal_fp4_e2m1_format": (4, ml_dtypes.float4_e2m1fn),
    "int4b_format": (4, ml_dtypes.int4),
    "uint4b_format": (4, ml_dtypes.uint4),
    "int2b_format": (2, ml_dtypes.int2),
    "uint2b_format": (2, ml_dtypes.uint2),
}


@pytest.mark.parametrize("format_name", FORMAT_VALUES)
@pytest.mark.parametrize("k0", [0, 5])
def test_formats(format_name: str, k0: int) -> None:
    bits, dtype = FORMAT_VALUES[format_name]
    K = 64
    codes = np.random.default_rng(0).integers(0, 1 << bits, (32, K)).astype(np.uint8)
    if format_name.startswith("metal_fp8"):
        codes[(codes & 0x7F) >= 0x7C] = 0  # no infinity and no NaN
    values = codes.view(dtype) if bits == 8 else sub_byte_values(codes, bits, dtype)
    a, out = operand(16, K, np.float16), np.zeros((16, 32), np.float32)
    text = FORMATS.format(format=format_name, K=K, k0=k0)
    metal(text, 410).launch("formats", [a, packed(codes, bits), Out(out)], grid=1, group=32, check=True)
    assert_close(out, a[:, k0:], values.astype(np.float32)[:, k0:].T)


def sub_byte_values(codes: np.ndarray, bits: int, dtype: type) -> np.ndarray:
    """What ml_dtypes makes of each code; its sub-byte types take a byte each, sign-extended."""
    if np.dtype(dtype).name.startswith("int"):
        return ((codes.astype(np.int8) << (8 - bits)).astype(np.int8) >> (8 - bits)).astype(np.float32)
    return codes.view(dtype).astype(np.float32)


def test_scale_planes() -> None:
    text = """
    kernel void scaled(device half* a [[buffer(0)]], device uchar* b [[buffer(1)]], device uchar* scales [[buffer(2)]],
                       device float* c [[buffer(3)]]) {
      using plane = tensor_blockwise<tensor_plane_scales, device metal_fp8_ue8m0_format, 32, 1>;
      using weights = tensor<device metal_fp4_e2m1_format, dextents<int, 2>, tensor_inline, plane>;
      weights B(b, dextents<int, 2>(96, 32), array<int, 2>{1, 96}, plane(scales));
      matrix<half> A(a, dextents<int, 2>(96, 16));
      matrix<float> C(c, dextents<int, 2>(16, 16));
      constexpr auto descriptor = matmul2d_descriptor(16, 16, static_cast<int>(dynamic_extent), false, true);
      matmul2d<descriptor, execution_simdgroup> op;
      auto tA = A.slice(32, 0);
      auto tB = B.slice(32, 16);
      op.run(tA, tB, C);
    }
    """
    rng = np.random.default_rng(0)
    codes, exponents = rng.integers(0, 16, (32, 96)).astype(np.uint8), rng.integers(120, 134, (32, 3)).astype(np.uint8)
    weights = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32) * np.repeat(
        2.0 ** (exponents.astype(int) - 127), 32, 1
    )
    a, out = operand(16, 96, np.float16), np.zeros((16, 16), np.float32)
    metal(text, 410).launch("scaled", [a, packed(codes, 4), exponents, Out(out)], grid=1, group=32)
    assert_close(out, a[:, 32:], weights[16:, 32:].astype(np.float32).T)


@pytest.mark.parametrize(
    ("L", "R", "D", "msl", "message"),
    [
        ("half", "metal_fp8_e4m3_format", "float", 410, None),
        ("half", "metal_fp8_e4m3_format", "float", 400, "does not take"),
        ("bfloat", "metal_fp8_e4m3_format", "float", 410, "does not take"),
        ("metal_fp8_e4m3_format", "metal_fp8_e4m3_format", "half", 410, None),
        ("metal_fp8_e4m3_format", "metal_fp8_e5m2_format", "float", 410, "does not take"),
        ("half", "int4b_format", "half", 400, None),
        ("bfloat", "uint4b_format", "bfloat", 400, None),
        ("char", "int4b_format", "int", 400, None),
        ("char", "uint4b_format", "int", 400, "does not take"),
        ("half", "int2b_format", "half", 400, "does not take"),
        ("uchar", "uint2b_format", "int", 410, None),
        ("half", "metal_fp8_ue8m0_format", "float", 410, "does not take"),
    ],
)
def test_formats_accepted(L: str, R: str, D: str, msl: int, message: str | None) -> None:
    body = RUN.format(**(LEGAL | {"L": L, "R": R, "D": D}))
    if message is None:
        compile_run(body, msl)
    else:
        with pytest.raises(CompileError, match=message):
            compile_run(body, msl)
