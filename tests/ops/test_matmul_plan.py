"""What planning makes of shapes, strides and offsets, up to sizes that no machine could allocate."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

import pytest

from mlx_tessl import _ext

Operand = _ext.plan.Operand
Plan = _ext.plan.Plan
Launch = _ext.plan.Launch

PORTABLE = {"gpu": "m1", "macos": "15.0"}
TENSOROPS = {"gpu": "m5-pro", "macos": "26.4"}
devices = pytest.mark.parametrize("device", [PORTABLE, TENSOROPS], ids=["portable", "tensorops"])

HAS_C, HAS_BIAS, HAS_RESIDUAL, HAS_BATCH, ACTIVATION, HAS_K = range(6)
VECTOR_OUT, VECTOR_C, VECTOR_BIAS, VECTOR_RESIDUAL, VECTOR_A, VECTOR_B = range(6, 12)


@dataclass(frozen=True)
class Addend:
    row_stride: int
    col_stride: int
    batch_strides: tuple[int, ...]


@dataclass(frozen=True)
class Args:
    """MatmulArgs of kernels/args/matmul.h."""

    M: int
    N: int
    K: int
    alpha: float
    beta: float
    lda: int
    ldb: int
    batch_shape: tuple[int, ...]
    a_batch_strides: tuple[int, ...]
    b_batch_strides: tuple[int, ...]
    c: Addend
    bias: Addend
    residual: Addend


def args_of(launch: Launch) -> Args:
    values = struct.unpack("<7i2f4x2q8i8q8q30q", launch.bytes_of(launch.arguments[3]))
    ndim = values[3]
    addends = [values[35 + 10 * i : 45 + 10 * i] for i in range(3)]
    return Args(
        *values[:3],
        *values[7:11],
        *(values[start : start + ndim] for start in (11, 19, 27)),
        *(Addend(x[0], x[1], x[2 : 2 + ndim]) for x in addends),
    )


def plan_of(a: Operand, b: Operand, dtype: str = "float32", **keywords: Any) -> Plan:
    return _ext.plan.Matmul(dtype, a, b, **keywords).plan()


def only_launch(a: Operand, b: Operand, dtype: str = "float32", **keywords: Any) -> Launch:
    plan = plan_of(a, b, dtype, **keywords)
    assert plan.scratch == []
    (launch,) = plan.launches
    return launch


def roles(launch: Launch) -> list[tuple[str, int]]:
    return [(argument.role, argument.index) for argument in launch.arguments]


def matrix(rows: int, columns: int, *, transposed: bool = False, offset: int = 0) -> Operand:
    return Operand([rows, columns], [1, rows] if transposed else [columns, 1], offset)


# Layouts


@devices
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("layout", "lda", "ldb"), [("nn", 96, 80), ("nt", 96, 96), ("tn", 64, 80), ("tt", 64, 96)])
def test_every_layout_is_read_in_place(device: dict[str, str], dtype: str, layout: str, lda: int, ldb: int) -> None:
    a = matrix(64, 96, transposed=layout[0] == "t")
    b = matrix(96, 80, transposed=layout[1] == "t")
    launch = only_launch(a, b, dtype, **device)
    variant = "portable" if device is PORTABLE else "tensorops"
    assert launch.kernel.startswith(f"matmul_{variant}_{layout}_{dtype}_")
    assert launch.capability == variant
    assert launch.group == (128, 1, 1)
    assert launch.threadgroup_memory == 0
    assert roles(launch)[:4] == [("input", 0), ("input", 1), ("output", 0), ("bytes", 0)]
    assert roles(launch)[4:] == [("unused", 0)] * 3
    args = args_of(launch)
    assert (args.M, args.N, args.K, args.lda, args.ldb) == (64, 80, 96, lda, ldb)
    assert (args.alpha, args.beta, args.batch_shape) == (1.0, 0.0, ())


def test_relaxed_float32_has_its_own_kernel() -> None:
    a, b = matrix(64, 64), matrix(64, 64)
    assert "_float32_64x64" in only_launch(a, b, relaxed=False, **TENSOROPS).kernel
    assert "_float32_relaxed_64x64" in only_launch(a, b, relaxed=True, **TENSOROPS).kernel
    assert "_float32_32x32" in only_launch(a, b, relaxed=True, **PORTABLE).kernel


@devices
def test_rows_apart_are_read_in_place(device: dict[str, str]) -> None:
    launch = only_launch(Operand([64, 96], [200, 1]), Operand([96, 80], [1, 400]), **device)
    assert (args_of(launch).lda, args_of(launch).ldb) == (200, 400)


@devices
@pytest.mark.parametrize("strides", [[-7, 1], [10**15, 1], [5, 1], [1, -3]], ids=str)
def test_strides_of_one_element_mean_nothing(device: dict[str, str], strides: list[int]) -> None:
    row = only_launch(Operand([1, 96], strides if strides[1] == 1 else [strides[0], 1]), matrix(96, 80), **device)
    assert row.kernel.split("_")[1:3] == [row.capability, "nn"]
    assert args_of(row).lda == 96
    column = only_launch(matrix(64, 96), Operand([96, 1], [1, strides[0]]), **device)
    assert column.kernel.split("_")[2] == "nt"
    assert args_of(column).ldb == 96


def test_a_strided_row_is_a_column_of_the_transpose() -> None:
    launch = only_launch(Operand([1, 96], [0, 7]), matrix(96, 80), **PORTABLE)
    assert launch.kernel.split("_")[2] == "tn"
    assert args_of(launch).lda == 7


def test_rows_that_run_backwards_are_read_in_place() -> None:
    launch = only_launch(Operand([64, 96], [-96, 1], 63 * 96 * 4), matrix(96, 80), **TENSOROPS)
    assert launch.capability == "portable"
    assert args_of(launch).lda == -96


# Copies


@devices
def test_an_operand_without_a_contiguous_dimension_is_copied(device: dict[str, str]) -> None:
    plan = plan_of(Operand([64, 96], [2 * 96 * 2, 2]), Operand([96, 80], [2, 300]), **device)
    assert plan.scratch == [64 * 96 * 4, 96 * 80 * 4]
    copy_a, copy_b, product = plan.launches
    assert {copy_a.kernel, copy_b.kernel} == {"copy_strided_uint32"}
    assert roles(copy_a) == [("input", 0), ("scratch_out", 0), ("bytes", 0)]
    assert roles(copy_b) == [("input", 1), ("scratch_out", 1), ("bytes", 0)]
    assert roles(product)[:3] == [("scratch_in", 0), ("scratch_in", 1), ("output", 0)]
    # b's rows are closer together than its columns: its transpose is what is contiguous in the copy
    assert product.kernel.split("_")[2] == "nt"
    assert (args_of(product).lda, args_of(product).ldb) == (96, 96)


def copy_args_of(launch: Launch) -> tuple[tuple[int, ...], tuple[int, ...]]:
    values = struct.unpack("<12i10q", launch.bytes_of(launch.arguments[2]))
    return values[1 : 1 + values[0]], values[12 : 12 + values[0]]


def test_a_copy_keeps_broadcast_members_one() -> None:
    a = Operand([5, 6, 64, 96], [64 * 96 * 2, 0, 96 * 2, 2])
    plan = plan_of(a, Operand([5, 6, 96, 80]), "float16", **PORTABLE)
    assert plan.scratch == [5 * 64 * 96 * 2]
    copy, product = plan.launches
    assert copy.kernel == "copy_strided_uint16"
    assert copy_args_of(copy) == ((5, 64, 96), (64 * 96 * 2, 96 * 2, 2))
    assert copy.group == (32, 8, 1)
    assert copy.grid == (1, 8, 5)
    assert args_of(product).batch_shape == (5, 6)
    assert args_of(product).a_batch_strides == (64 * 96, 0)


@pytest.mark.parametrize(("columns", "vector_out"), [(96, True), (97, False)])
def test_a_copy_writes_vectors_where_rows_allow(columns: int, vector_out: bool) -> None:
    copy = plan_of(Operand([64, columns], [4 * columns, 4]), matrix(columns, 8), **PORTABLE).launches[0]
    assert copy.constants == {0: vector_out, 1: False}


# Where TensorOps cannot read


def obstacle(a: Operand, b: Operand, dtype: str = "float32", **keywords: Any) -> str | None:
    call = _ext.plan.Matmul(dtype, a, b, **{**TENSOROPS, **keywords})
    reason = call.tensorops_obstacle
    (launch, *_) = (x for x in call.plan().launches if x.kernel.startswith("matmul_"))
    assert launch.capability == ("portable" if reason else "tensorops")
    return reason


@pytest.mark.parametrize(
    ("gpu", "macos", "runs"),
    [("m4-max", "26.4", False), ("m5", "26.1", False), ("m5", "26.2", True), ("m5-max", "27.0", True)],
)
def test_device_gate(gpu: str, macos: str, runs: bool) -> None:
    reason = obstacle(matrix(64, 64), matrix(64, 64), gpu=gpu, macos=macos)
    assert (reason is None) == runs
    assert runs or "no matrix unit" in str(reason)


@pytest.mark.parametrize(("offset", "aligned"), [(0, True), (4, False), (8, False), (16, True), (48, True)])
def test_operands_start_on_16_bytes(offset: int, aligned: bool) -> None:
    assert (obstacle(matrix(64, 64, offset=offset), matrix(64, 64)) is None) == aligned
    assert (obstacle(matrix(64, 64), matrix(64, 64, offset=offset)) is None) == aligned


@pytest.mark.parametrize(("dtype", "multiple"), [("float32", 4), ("float16", 8), ("bfloat16", 8)])
def test_members_of_a_batch_start_on_16_bytes(dtype: str, multiple: int) -> None:
    for K in range(1, 17):
        batch = Operand([3, 5, K], [5 * K, K, 1])
        b = Operand([3, K, 16])
        assert (obstacle(batch, b, dtype) is None) == (5 * K % multiple == 0)


def test_few_rows_run_by_vectors_on_any_device() -> None:
    assert "few rows" in str(obstacle(matrix(4, 4096), matrix(4096, 4096)))


def test_odd_rows_do_not_matter_to_tensorops() -> None:
    assert obstacle(matrix(37, 41), matrix(41, 43), "float16") is None


@pytest.mark.parametrize(("stride", "near"), [(2**21 - 4, True), (2**21, False), (2**31, False)])
def test_a_tile_spans_less_than_2_gb(stride: int, near: bool) -> None:
    assert (obstacle(Operand([4096, 64], [stride, 1]), matrix(64, 64)) is None) == near
    assert (obstacle(matrix(64, 4096), Operand([4096, 64], [stride, 1])) is None) == near


def test_a_stride_of_zero_is_left_to_the_portable_kernel() -> None:
    assert "overlap" in str(obstacle(Operand([64, 96], [0, 1]), matrix(96, 80)))


# Batch


@devices
def test_batch_dimensions_merge(device: dict[str, str]) -> None:
    launch = only_launch(Operand([2, 3, 4, 32, 16]), Operand([2, 3, 4, 16, 8]), **device)
    args = args_of(launch)
    assert args.batch_shape == (24,)
    assert args.a_batch_strides == (512,)
    assert args.b_batch_strides == (128,)
    assert launch.grid[2] == 24
    assert launch.constants[HAS_BATCH]


def test_batch_dimensions_merge_only_where_all_operands_allow() -> None:
    args = args_of(only_launch(Operand([2, 3, 4, 32, 16]), Operand([2, 1, 4, 16, 8]), **PORTABLE))
    assert args.batch_shape == (2, 3, 4)
    assert args.b_batch_strides == (512, 0, 128)
    args = args_of(only_launch(Operand([2, 3, 4, 32, 16]), Operand([1, 1, 4, 16, 8]), **PORTABLE))
    assert args.batch_shape == (6, 4)
    assert args.b_batch_strides == (0, 128)


def test_a_batch_over_shared_b_becomes_rows() -> None:
    launch = only_launch(Operand([2, 3, 32, 16]), Operand([16, 8]), **PORTABLE)
    args = args_of(launch)
    assert (args.M, args.batch_shape, args.lda) == (192, (), 16)
    assert not launch.constants[HAS_BATCH]


def test_single_rows_over_shared_b_become_rows() -> None:
    args = args_of(only_launch(Operand([8, 1, 64], [640, 64, 1]), Operand([64, 32]), **PORTABLE))
    assert (args.M, args.batch_shape, args.lda) == (8, (), 640)


@pytest.mark.parametrize(
    "a",
    [
        Operand([3, 32, 16], [1024, 16, 1]),  # gaps between the members
        Operand([3, 32, 16], [0, 16, 1]),  # one member
        Operand([3, 32, 16], [512, 1, 32]),  # transposed: the rows do not go on
        Operand([3, 1, 16], [1, 1, 3]),  # folding would leave no contiguous dimension, and cost a copy
    ],
)
def test_rows_that_do_not_go_on_stay_a_batch(a: Operand) -> None:
    args = args_of(only_launch(a, Operand([16, 8]), **PORTABLE))
    assert args.batch_shape == (3,)


def test_addends_keep_a_batch_from_becoming_rows() -> None:
    a, b = Operand([3, 32, 16]), Operand([16, 8])
    shared = args_of(only_launch(a, b, residual=Operand([32, 8]), **PORTABLE))
    assert (shared.M, shared.batch_shape, shared.residual) == (32, (3,), Addend(8, 1, (0,)))
    own = args_of(only_launch(a, b, residual=Operand([3, 32, 8]), **PORTABLE))
    assert (own.M, own.batch_shape, own.residual) == (96, (), Addend(8, 1, ()))
    bias = args_of(only_launch(a, b, bias=Operand([8]), **PORTABLE))
    assert (bias.M, bias.batch_shape, bias.bias) == (96, (), Addend(0, 1, ()))


def test_rows_do_not_outgrow_int32() -> None:
    args = args_of(only_launch(Operand([2**16, 2**15, 1]), Operand([1, 8]), **PORTABLE))
    assert (args.M, args.batch_shape) == (2**15, (2**16,))
    args = args_of(only_launch(Operand([2**15, 2**15, 1]), Operand([1, 8]), **PORTABLE))
    assert (args.M, args.batch_shape) == (2**30, ())


def test_eight_batch_dimensions_that_do_not_merge() -> None:
    def interleaved(ndim: int, phase: int) -> Operand:
        return Operand([2 if d % 2 == phase else 1 for d in range(ndim)] + [4, 4])

    args = args_of(only_launch(interleaved(8, 0), interleaved(8, 1), **PORTABLE))
    assert args.batch_shape == (2,) * 8
    with pytest.raises(ValueError, match=r"\[mlx_tessl.matmul\] the operands have more than 8 batch dimensions"):
        plan_of(interleaved(9, 0), interleaved(9, 1), **PORTABLE)


# Epilogue


@devices
def test_addends_are_bound_and_described(device: dict[str, str]) -> None:
    launch = only_launch(
        Operand([3, 32, 16]),
        Operand([3, 16, 8]),
        c=Operand([32, 8], [1, 32]),
        bias=Operand([8]),
        residual=Operand([3, 1, 8]),
        alpha=0.5,
        beta=2.0,
        activation="gelu",
        **device,
    )
    assert roles(launch)[4:] == [("input", 2), ("input", 3), ("input", 4)]
    args = args_of(launch)
    assert (args.alpha, args.beta) == (0.5, 2.0)
    assert args.c == Addend(1, 32, (0,))
    assert args.bias == Addend(0, 1, (0,))
    assert args.residual == Addend(0, 1, (8,))
    constants = launch.constants
    assert [constants[i] for i in (HAS_C, HAS_BIAS, HAS_RESIDUAL, HAS_K)] == [True] * 4
    assert constants[ACTIVATION] == 3
    assert [constants[i] for i in (VECTOR_OUT, VECTOR_C, VECTOR_BIAS, VECTOR_RESIDUAL)] == [True, False, True, True]


def test_c_is_not_bound_when_beta_is_zero() -> None:
    launch = only_launch(matrix(32, 16), matrix(16, 8), c=matrix(32, 8), bias=Operand([8]), beta=0.0, **PORTABLE)
    assert roles(launch)[4:] == [("unused", 0), ("input", 3), ("unused", 0)]
    assert not launch.constants[HAS_C]


@pytest.mark.parametrize("activation", [None, "relu", "silu", "gelu", "gelu_tanh"])
def test_activation_constant(activation: str | None) -> None:
    launch = only_launch(matrix(32, 16), matrix(16, 8), activation=activation, **PORTABLE)
    assert launch.constants[ACTIVATION] == [None, "relu", "silu", "gelu", "gelu_tanh"].index(activation)


@pytest.mark.parametrize(
    ("a", "b", "vectors"),
    [
        (matrix(32, 16), matrix(16, 8), (True, True)),
        (matrix(32, 15), matrix(15, 8), (False, True)),
        (matrix(32, 16), matrix(16, 9), (True, False)),
        (matrix(32, 16, offset=8), matrix(16, 8, offset=16), (False, True)),
        (matrix(30, 16, transposed=True), matrix(16, 8, transposed=True), (False, True)),
    ],
)
def test_vector_loads_need_aligned_rows(a: Operand, b: Operand, vectors: tuple[bool, bool]) -> None:
    constants = only_launch(a, b, **PORTABLE).constants
    assert (constants[VECTOR_A], constants[VECTOR_B]) == vectors


# Nothing to sum, nothing to write


@devices
def test_no_k_writes_the_epilogue(device: dict[str, str]) -> None:
    launch = only_launch(Operand([3, 32, 0], [0, 3, 3]), Operand([0, 8]), c=Operand([32, 8]), beta=1.0, **device)
    assert roles(launch)[:2] == [("unused", 0), ("unused", 0)]
    assert not launch.constants[HAS_K]
    assert args_of(launch).K == 0


@devices
@pytest.mark.parametrize(("a", "b"), [([0, 8], [8, 8]), ([8, 8], [8, 0]), ([0, 8, 8], [8, 8]), ([0, 8, 0], [0, 8])])
def test_no_output_needs_no_launch(device: dict[str, str], a: list[int], b: list[int]) -> None:
    plan = plan_of(Operand(a), Operand(b), **device)
    assert plan.launches == []
    assert plan.scratch == []


# Sizes past 2^31


@devices
def test_strides_past_2_to_the_31(device: dict[str, str]) -> None:
    rows, columns = 2**20, 2**14
    launch = only_launch(Operand([4, rows, columns]), Operand([4, columns, rows]), "bfloat16", **device)
    args = args_of(launch)
    assert args.a_batch_strides == (2**34,)
    assert args.b_batch_strides == (2**34,)
    assert math.prod(launch.grid) >= 4 * (rows // 128) * (rows // 64)


def test_a_copy_past_2_to_the_31() -> None:
    plan = plan_of(Operand([2**20, 2**14], [2**15, 2]), matrix(2**14, 8), **PORTABLE)
    assert plan.scratch == [2**36]
    assert plan.launches[0].grid == (2**14 // 4 // 32, 2**20 // 8, 1)


# Batch invariance


def test_batch_invariance_copies_rather_than_change_the_kernel() -> None:
    a = Operand([64, 96], [104, 1], 8)
    assert obstacle(a, matrix(96, 80), batch_invariant=False) is not None
    plan = plan_of(a, matrix(96, 80), batch_invariant=True, **TENSOROPS)
    copy, product = plan.launches
    assert copy.kernel == "copy_strided_uint32"
    assert copy.constants == {0: True, 1: False}
    assert product.capability == "tensorops"
    assert plan_of(matrix(64, 96), matrix(96, 80), batch_invariant=True, **TENSOROPS).scratch == []


def test_batch_invariance_with_odd_rows_is_portable() -> None:
    assert "batch invariance" in str(obstacle(matrix(64, 97), matrix(97, 80), batch_invariant=True))


def test_batch_invariance_keeps_tiles_within_2_gb_for_any_number_of_rows() -> None:
    for rows in (1, 4096):
        long_rows = obstacle(Operand([rows, 2**21]), Operand([2**21, 8]), batch_invariant=True)
        assert "spans 2 GB" in str(long_rows)
    far_rows = plan_of(Operand([4096, 64], [2**21, 1]), matrix(64, 64), batch_invariant=True, **TENSOROPS)
    assert [launch.capability for launch in far_rows.launches] == ["portable", "tensorops"]


# The plan as a value


def as_value(plan: Plan) -> object:
    return plan.scratch, [
        (
            launch.kernel,
            launch.constants,
            [(x.role, x.index, x.size, x.offset) for x in launch.arguments],
            [launch.bytes_of(x) for x in launch.arguments if x.role == "bytes"],
            launch.grid,
            launch.group,
        )
        for launch in plan.launches
    ]


@devices
def test_equal_calls_give_equal_plans(device: dict[str, str]) -> None:
    def make() -> Plan:
        return plan_of(Operand([3, 64, 96], [0, 200, 2]), Operand([3, 96, 80]), bias=Operand([80]), **device)

    assert as_value(make()) == as_value(make())
