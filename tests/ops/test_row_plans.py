"""What planning makes of rows: teams, strides, alignment and the order of arguments, up to sizes no machine has."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from mlx_tessl import _ext

Operand = _ext.plan.Operand
Plan = _ext.plan.Plan
Launch = _ext.plan.Launch

SUM, SOFTMAX = 0, 3


def only_launch(plan: Plan) -> Launch:
    assert plan.scratch == []
    (launch,) = plan.launches
    return launch


def roles(launch: Launch) -> list[str]:
    """ "x0" is input 0, "y0" output 0, "-" unbound, "args" the argument struct."""
    names = {"input": "x{}", "output": "y{}", "unused": "-", "bytes": "args"}
    return [names[argument.role].format(argument.index) for argument in launch.arguments]


def rows_of(launch: Launch) -> tuple[int, int, tuple[int, ...]]:
    """Columns, count and shape of RowsArgs, which every struct of kernels/args begins with here."""
    columns, ndim, count, *shape = struct.unpack_from("<2iq8i", launch.bytes_of(launch.arguments[-1]))
    return columns, count, tuple(shape[:ndim])


def source_of(launch: Launch, index: int) -> tuple[int, tuple[int, ...]]:
    """Column stride and strides of the RowSourceArgs that follow RowsArgs."""
    ndim = len(rows_of(launch)[2])
    column_stride, *strides = struct.unpack_from("<9q", launch.bytes_of(launch.arguments[-1]), 48 + 72 * index)
    return column_stride, tuple(strides[:ndim])


def reduction(x: Operand, kind: int = SOFTMAX, dtype: str = "float32") -> Launch:
    return only_launch(_ext.plan.reduction(dtype, kind, x))


# Teams


@pytest.mark.parametrize(
    ("columns", "wide", "threads", "groups"),
    [
        (1, False, 256, 2),
        (512, False, 256, 2),
        (513, True, 256, 9),
        (4096, True, 256, 9),
        (4097, True, 1024, 9),
        (1 << 30, True, 1024, 9),
    ],
)
def test_teams_depend_on_the_columns_alone(columns: int, wide: bool, threads: int, groups: int) -> None:
    launch = reduction(Operand([9, columns]))
    assert launch.constants[0] is wide
    assert (launch.group, launch.grid) == ((threads, 1, 1), (groups, 1, 1))


def test_a_vocabulary_is_one_threadgroup_a_row() -> None:
    logits, noise = Operand([3, 7]), Operand([3, 7])
    launch = only_launch(_ext.plan.sampling("float16", logits, noise=noise, top_k=4))
    assert launch.constants[0] is True
    assert launch.grid == (3, 1, 1)
    assert launch.kernel == "sample_rows_float16"
    assert roles(launch) == ["x0", "x1", "y0", "args"]
    assert [launch.constants[i] for i in range(1, 6)] == [True, False, False, True, False]


def test_more_rows_than_an_int_counts() -> None:
    launch = reduction(Operand([3, 1 << 30, 8]))
    assert rows_of(launch) == (8, 3 << 30, (3, 1 << 30))
    assert launch.grid == ((3 << 30) // 8, 1, 1)


# Layouts


def test_leading_dimensions_merge() -> None:
    assert rows_of(reduction(Operand([2, 3, 4, 8])))[2] == (24,)
    assert rows_of(reduction(Operand([2, 3, 4, 8], [96, 8, 24, 1])))[2] == (2, 3, 4)
    assert rows_of(reduction(Operand([2, 1, 4, 8], [32, 777, 8, 1])))[2] == (8,)
    assert rows_of(reduction(Operand([8])))[1:] == (1, ())


def test_strides_are_kept() -> None:
    launch = reduction(Operand([5, 7, 8], [1000, -16, 2]))
    assert source_of(launch, 0) == (2, (1000, -16))


def test_a_broadcast_operand_has_stride_zero() -> None:
    launch = only_launch(_ext.plan.gate("float32", 1, Operand([4, 1, 8]), Operand([3, 1])))
    assert rows_of(launch) == (8, 12, (4, 3))
    assert source_of(launch, 0) == (1, (8, 0))
    assert source_of(launch, 1) == (0, (0, 1))


def test_too_many_dimensions_that_do_not_merge() -> None:
    shape = [2] * 10
    strides = [3**i for i in range(10)]
    with pytest.raises(ValueError, match="more than 8 dimensions"):
        reduction(Operand(shape, strides))


@pytest.mark.parametrize(
    ("shape", "strides", "offset", "vector"),
    [
        ([4, 64], [64, 1], 0, True),
        ([4, 64], [68, 1], 0, True),
        ([4, 64], [66, 1], 0, False),
        ([4, 64], [64, 1], 4, False),
        ([4, 64], [64, 1], 16, True),
        ([4, 64], [128, 2], 0, False),
        ([4, 62], [64, 1], 0, True),  # the last two columns of a row are not of a run
        ([1, 63], [999, 1], 0, True),  # a single row has no stride
        ([4, 64], [-64, 1], 0, True),
    ],
)
def test_vector_loads_where_all_runs_are_aligned(
    shape: list[int], strides: list[int], offset: int, vector: bool
) -> None:
    assert reduction(Operand(shape, strides, offset)).constants[2] is vector


def test_half_the_bytes_are_half_the_alignment() -> None:
    assert reduction(Operand([4, 64], [64, 1], 8), dtype="bfloat16").constants[2] is True
    assert reduction(Operand([4, 64], [64, 1], 8), dtype="float32").constants[2] is False


@pytest.mark.parametrize(("columns", "vector"), [(64, True), (62, False)])
def test_vector_stores_where_every_row_starts_on_a_run(columns: int, vector: bool) -> None:
    assert reduction(Operand([4, columns])).constants[3] is vector


# Arguments


ROW, LINE = Operand([6, 32]), Operand([32])


@pytest.mark.parametrize(
    ("operands", "expected"),
    [
        ({}, ["x0", "-", "-", "-", "-", "y0", "-", "args"]),
        ({"weight": LINE}, ["x0", "-", "-", "x1", "-", "y0", "-", "args"]),
        ({"residual": ROW, "bias": LINE}, ["x0", "x1", "-", "-", "x2", "y0", "y1", "args"]),
        ({"gate": ROW, "weight": LINE}, ["x0", "-", "x1", "x2", "-", "y0", "-", "args"]),
        (
            {"residual": ROW, "gate": ROW, "weight": LINE, "bias": LINE},
            ["x0", "x1", "x2", "x3", "x4", "y0", "y1", "args"],
        ),
    ],
)
@pytest.mark.parametrize("centered", [False, True])
def test_arguments_of_a_norm(operands: dict[str, Any], expected: list[str], centered: bool) -> None:
    launch = only_launch(_ext.plan.norm("bfloat16", ROW, centered=centered, **operands))
    assert launch.kernel == "norm_rows_bfloat16"
    assert roles(launch) == expected
    assert launch.constants[1] is centered
    present = [name in operands for name in ("residual", "gate", "weight", "bias")]
    assert [launch.constants[i] for i in range(2, 6)] == present


def test_arguments_of_rope() -> None:
    q, k = Operand([2, 8, 5, 64]), Operand([2, 2, 5, 64])
    positions, inv_freq = Operand([5, 1]), Operand([16])
    alone = only_launch(_ext.plan.rope("float32", q, None, positions, inv_freq))
    assert roles(alone) == ["x0", "-", "x1", "x2", "-", "-", "y0", "-", "args"]
    assert alone.grid == (10, 1, 1)
    both = only_launch(_ext.plan.rope("float32", q, k, positions, inv_freq, weight=Operand([64])))
    assert roles(both) == ["x0", "x1", "x2", "x3", "x4", "x5", "y0", "y1", "args"]
    assert both.grid == (10 + 3, 1, 1)
    groups_of_first, rotary_dim = struct.unpack_from("<2i", both.bytes_of(both.arguments[-1]), 408)
    assert (groups_of_first, rotary_dim) == (10, 32)


def test_positions_of_a_batch_step_with_it() -> None:
    launch = only_launch(_ext.plan.rope("float32", Operand([2, 8, 5, 64]), None, Operand([2, 1, 5, 1]), Operand([32])))
    assert rows_of(launch)[2] == (2, 8, 5)
    assert source_of(launch, 0) == (1, (8 * 5 * 64, 5 * 64, 64))
    assert source_of(launch, 1) == (0, (5, 0, 1))


@pytest.mark.parametrize(("half", "vector"), [(16, True), (12, True), (10, False), (15, False)])
def test_rope_needs_whole_runs_in_each_half(half: int, vector: bool) -> None:
    launch = only_launch(_ext.plan.rope("float32", Operand([3, 64]), None, Operand([3, 1]), Operand([half])))
    assert launch.constants[4] is vector
    assert launch.constants[5] is vector


def test_segments_are_rows_of_the_grid() -> None:
    launch = only_launch(_ext.plan.segment_mean("float32", Operand([1000, 300]), Operand([7]), Operand([7], [2])))
    assert (launch.grid, launch.group) == ((3, 7, 1), (256, 1, 1))
    assert roles(launch) == ["x0", "x1", "x2", "y0", "args"]
    assert struct.unpack_from("<5qi", launch.bytes_of(launch.arguments[-1])) == (1000, 300, 1, 1, 2, 300)


def test_a_gate_is_four_columns_a_thread() -> None:
    launch = only_launch(_ext.plan.gate("float32", 0, Operand([10, 130]), Operand([10, 130], [260, 1])))
    assert (launch.grid, launch.group) == ((2, 2, 1), (32, 8, 1))
    assert roles(launch) == ["x0", "x1", "y0", "args"]
    assert [launch.constants[i] for i in range(4)] == [0, False, True, False]


CACHE, NEW = Operand([2, 3, 10, 64]), Operand([2, 3, 2, 64])


def test_a_cache_is_copied_unless_it_is_taken_over() -> None:
    positions = Operand([2, 1, 1, 1])
    copy, store = _ext.plan.kv_store(2, CACHE, NEW, positions, in_place=False).launches
    assert (copy.family, store.kernel) == ("copy", "kv_store_uint16")
    (alone,) = _ext.plan.kv_store(2, CACHE, NEW, positions, in_place=True).launches
    assert roles(alone) == roles(store) == ["x1", "x2", "y0", "args"]
    assert struct.unpack_from("<2i", alone.bytes_of(alone.arguments[-1]), 192) == (2, 10)
    assert source_of(alone, 1) == (0, (1, 0))
