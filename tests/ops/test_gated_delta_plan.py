"""What planning makes of the gated delta rule and its convolution: one launch, strides, and the order of arguments."""

from __future__ import annotations

import struct

import pytest

from mlx_tessl import _ext

from .test_row_plans import only_launch

plans = _ext.plan
Operand = plans.Operand

B, T, HK, HV, DK, DV = 3, 7, 2, 4, 40, 24


def roles(launch: plans.Launch) -> list[str]:
    """ "x0" is input 0, "y0" output 0, "s0" scratch 0, "-" unbound, "args" the argument struct."""
    names = {"input": "x{}", "output": "y{}", "scratch_in": "s{}", "scratch_out": "s{}", "unused": "-", "bytes": "args"}
    return [names[argument.role].format(argument.index) for argument in launch.arguments]


def delta(dtype: str = "float32", Dk: int = DK, Dv: int = DV, **optional: Operand) -> plans.Launch:
    q, v, g = Operand([B, T, HK, Dk]), Operand([B, T, HV, Dv]), Operand([B, T, HV])
    return only_launch(plans.gated_delta(dtype, q, q, v, g, g, **optional))


def test_arguments_follow_the_primitive_s_inputs() -> None:
    assert roles(delta()) == ["x0", "x1", "x2", "x3", "x4", *"-------", "y0", "y1", "args"]
    optional = {
        "state": Operand([B, HV, DV, DK]),
        "starts": Operand([B]),
        "lengths": Operand([B]),
        "A_log": Operand([HV]),
        "dt_bias": Operand([HV]),
    }
    expected = ["x0", "x1", "x2", "-", "-", "x3", "x4", "x8", "x9", "x5", "x6", "x7", "y0", "y1", "args"]
    assert roles(delta(**optional)) == expected
    assert dict(delta(**optional).constants) == {0: True, 1: True, 2: True, 3: True, 4: False, 5: False, 6: False}
    only_lengths = {"lengths": Operand([B])}
    assert roles(delta(**only_lengths)) == ["x0", "x1", "x2", "x3", "x4", *"------", "x5", "y0", "y1", "args"]


@pytest.mark.parametrize(("Dk", "columns"), [(1, 32), (32, 32), (33, 64), (64, 64), (65, 128), (129, 256), (256, 256)])
def test_a_kernel_holds_the_row(Dk: int, columns: int) -> None:
    assert delta("bfloat16", Dk=Dk).kernel == f"gated_delta_bfloat16_{columns}"


@pytest.mark.parametrize(("Dv", "groups"), [(1, 1), (16, 1), (17, 2), (128, 8)])
def test_a_simdgroup_for_four_rows_of_the_state(Dv: int, groups: int) -> None:
    launch = delta(Dv=Dv)
    assert launch.grid == (groups, HV, B)
    assert launch.group == (128, 1, 1)


def test_strides() -> None:
    """Slices of one projection; a state without B or with B = 1 has stride 0 over the batch."""
    row = 1000
    q = Operand([B, T, HK, DK], [T * row, row, DK, 1])
    v = Operand([B, T, HV, DV], [T * row, row, DV, 1])
    g = Operand([B, T, HV], [T * row, row, 1])
    for state in (Operand([HV, DV, DK]), Operand([1, HV, DV, DK])):
        launch = only_launch(plans.gated_delta("float32", q, q, v, g, g, state=state))
        sizes = struct.unpack_from("<6i", launch.bytes_of(launch.arguments[-1]))
        strides = struct.unpack_from("<24q", launch.bytes_of(launch.arguments[-1]), 24)
        assert sizes[:5] == (T, HK, HV, DK, DV)
        assert strides[:4] == (T * row, row, DK, 1)
        assert strides[8:12] == (T * row, row, DV, 1)
        assert strides[12:16] == (T * row, row, 1, 0)
        assert strides[20:24] == (0, DV * DK, DK, 1)


def whole(T: int, Dk: int = 128, **optional: Operand) -> plans.Plan:
    q, v, g = Operand([2, T, 16, Dk]), Operand([2, T, 32, 100]), Operand([2, T, 32])
    return plans.gated_delta("float16", q, q, v, g, g, **optional)


@pytest.mark.parametrize(("T", "Dk", "by_chunks"), [(15, 128, False), (16, 128, True), (16, 129, False)])
def test_when_chunks_are_taken(T: int, Dk: int, by_chunks: bool) -> None:
    kernels = [launch.kernel for launch in whole(T, Dk).launches]
    assert (kernels == ["gated_delta_prepare_float16", "gated_delta_scan_float16"]) == by_chunks
    assert len(kernels) == 1 + by_chunks


@pytest.mark.parametrize(("T", "chunks"), [(16, 1), (64, 1), (65, 2), (1 << 20, 1 << 14)])
def test_chunks(T: int, chunks: int) -> None:
    """A threadgroup for each chunk, then one for each 16 columns of V; between them two matrices and six vectors."""
    plan = whole(T)
    prepare, scan = plan.launches
    assert prepare.grid == (chunks, 32, 2)
    assert scan.grid == (7, 32, 2)
    assert plan.scratch == [2 * 32 * chunks * (2 * 64 * 64 + 6 * 64) * 4]
    assert struct.unpack_from("<q", scan.bytes_of(scan.arguments[-1]), 24) == (T * 16 * 128,)


def test_short_rows_of_a_ragged_batch_go_token_by_token() -> None:
    launches = whole(70, lengths=Operand([2])).launches
    assert [launch.kernel for launch in launches][2:] == ["gated_delta_float16_128"]
    assert dict(launches[2].constants)[6]


def test_convolution() -> None:
    x, weight = Operand([B, T, 70]), Operand([70, 4])
    launch = only_launch(plans.causal_conv1d("float16", x, weight))
    assert launch.kernel == "causal_conv1d_float16"
    assert roles(launch) == ["x0", "x1", "-", "-", "-", "y0", "y1", "args"]
    assert launch.grid == (2, 3, B)  # 64 channels and 4 rows a group; 7 rows of y and 3 of the state
    full = only_launch(
        plans.causal_conv1d("float16", x, weight, state=Operand([3, 70]), starts=Operand([B]), lengths=Operand([B]))
    )
    assert roles(full) == ["x0", "x1", "x2", "x3", "x4", "y0", "y1", "args"]
    assert struct.unpack_from("<3q", full.bytes_of(full.arguments[-1]), 16 + 24 + 16) == (0, 70, 1)


def gradient(T: int, dtype: str = "bfloat16", **ranges: Operand) -> plans.Plan:
    q, v, g = Operand([2, T, 16, 128]), Operand([2, T, 32, 100]), Operand([2, T, 32])
    state = Operand([2, 32, 100, 128])
    return plans.gated_delta_grad(dtype, q, q, v, g, g, state, v, state, **ranges)


@pytest.mark.parametrize(("T", "chunks"), [(1, 1), (64, 1), (65, 2), (1 << 20, 1 << 14)])
def test_a_gradient_keeps_a_state_for_each_chunk(T: int, chunks: int) -> None:
    plan = gradient(T)
    prepare, forwards, backwards, scores, rows = plan.launches
    assert [launch.kernel for launch in plan.launches] == [
        "gated_delta_prepare_bfloat16",
        "gated_delta_scan_bfloat16",
        "gated_delta_grad_scan_bfloat16",
        "gated_delta_grad_scores_bfloat16",
        "gated_delta_grad_rows_bfloat16",
    ]
    assert prepare.grid == scores.grid == (chunks, 32, 2)
    assert forwards.grid == backwards.grid == (7, 32, 2)
    assert rows.grid == (chunks, 16, 2)
    heads = 2 * 32
    states, tokens = heads * 100 * 128 * 4, heads * chunks * 64 * 100 * 4
    prepared = heads * chunks * (2 * 64 * 64 + 6 * 64) * 4
    assert plan.scratch == [prepared, states * (chunks + 1), states * chunks, tokens, tokens]
    assert all(dict(launch.constants)[7] for launch in (prepare, forwards))


def test_arguments_of_a_gradient() -> None:
    ranges = {"starts": Operand([2]), "lengths": Operand([2])}
    prepare, forwards, backwards, scores, rows = (roles(launch) for launch in gradient(70, **ranges).launches)
    assert prepare == ["x0", "x1", "x3", "x4", *"----", "x6", "x7", "s0", "args"]
    assert forwards == ["x0", "x1", "x2", "s0", "x5", "x6", "x7", "-", "-", "s1", "s3", "args"]
    assert backwards == ["x0", "x1", "x8", "x9", "s0", "x6", "x7", "s2", "s4", "y2", "y5", "args"]
    assert scores == ["x2", "x8", "s3", "s4", "x6", "x7", "s0", "args"]
    assert rows == ["x0", "x1", "x8", "s0", "s1", "s2", "s3", "s4", "x6", "x7", "y0", "y1", "y3", "y4", "args"]
    without = roles(gradient(70).launches[2])
    assert without == ["x0", "x1", "x6", "x7", "s0", "-", "-", "s2", "s4", "y2", "y5", "args"]


def test_a_gradient_reads_cotangents_by_their_strides() -> None:
    q, v, g = Operand([2, 9, 1, 8]), Operand([2, 9, 1, 4]), Operand([2, 9, 1])
    state, same = Operand([2, 1, 4, 8]), Operand([2, 9, 1, 4], [0, 0, 0, 0])
    launch = plans.gated_delta_grad(
        "float32", q, q, v, g, g, state, same, Operand([2, 1, 4, 8], [0, 7, 1, 4])
    ).launches[2]
    strides = struct.unpack_from("<8q", launch.bytes_of(launch.arguments[-1]), 248)
    assert strides == (0, 0, 0, 0, 0, 0, 1, 4)


@pytest.mark.parametrize(("T", "blocks"), [(1, 1), (256, 1), (257, 2)])
def test_gradient_of_the_convolution(T: int, blocks: int) -> None:
    x, weight, last = Operand([B, T, 70]), Operand([70, 4]), Operand([B, 3, 70])
    plan = plans.causal_conv1d_grad("float16", x, weight, x, last, state=Operand([3, 70]), lengths=Operand([B]))
    sums, inputs, weights, reduce = plan.launches
    assert [launch.kernel for launch in plan.launches] == [
        f"causal_conv1d_grad_{name}_float16" for name in ("sums", "inputs", "weights", "reduce")
    ]
    assert plan.scratch == [B * T * 70 * 4, B * blocks * 4 * 70 * 4]
    assert sums.grid == (2, -(-T // 4), B)
    assert inputs.grid == (2, -(-(T + 3) // 4), B)
    assert weights.grid == (2, 1, B * blocks)
    assert reduce.grid == (2, 1, 1)
    assert roles(sums) == ["x0", "x1", "x2", "-", "x3", "x4", "s0", "args"]
    assert roles(inputs) == ["x1", "-", "x3", "s0", "x5", "y0", "y2", "args"]
    assert roles(weights) == ["x0", "x2", "-", "x3", "s0", "s1", "args"]
    assert roles(reduce) == ["s1", "y1", "args"]


@pytest.mark.parametrize(
    ("gpu", "macos", "relaxed", "family"),
    [
        ("m4", "26.4", True, "gated_delta_chunks"),
        ("m5", "26.0", True, "gated_delta_chunks"),
        ("m5", "26.4", False, "gated_delta_chunks"),
        ("m5", "26.4", True, "gated_delta_tensorops"),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_chunks_on_the_matrix_units(gpu: str, macos: str, relaxed: bool, family: str, dtype: str) -> None:
    q, v, g = Operand([2, 70, 16, 128]), Operand([2, 70, 32, 100]), Operand([2, 70, 32])
    device = {"relaxed": relaxed, "gpu": gpu, "macos": macos}
    plan = plans.gated_delta(dtype, q, q, v, g, g, lengths=Operand([2]), **device)
    assert [launch.family for launch in plan.launches] == [family, family, "gated_delta"]
    prepare, scan, _ = plan.launches
    assert prepare.grid == (2, 32, 2)
    assert scan.grid == (4 if "tensorops" in family else 7, 32, 2)
    few, g = Operand([2, 15, 16, 128]), Operand([2, 15, 32])
    assert len(plans.gated_delta(dtype, few, few, Operand([2, 15, 32, 100]), g, g, **device).launches) == 1


@pytest.mark.parametrize(
    ("shape", "strides", "offset", "in_fours"),
    [
        ([2, 70, 2, 64], None, 0, True),
        ([1, 70, 1, 64], [3, 64, 5, 1], 0, True),  # strides of dimensions of one do not count
        ([2, 70, 2, 64], [70 * 130, 130, 64, 1], 0, False),
        ([2, 70, 2, 64], [70 * 128, 128, 1, 2], 0, False),
        ([2, 70, 2, 64], None, 8, False),
        ([2, 70, 2, 63], None, 0, False),
    ],
)
def test_when_four_columns_are_one_load(
    shape: list[int], strides: list[int] | None, offset: int, in_fours: bool
) -> None:
    q, whole = Operand(shape, strides, offset), Operand(shape)
    v, g = Operand([*shape[:3], 32]), Operand(shape[:3])
    for operands in ((q, whole), (whole, q)):
        plan = plans.gated_delta("float32", *operands, v, g, g, relaxed=True, gpu="m5", macos="26.4")
        assert [dict(launch.constants)[9] for launch in plan.launches] == [in_fours] * 2
