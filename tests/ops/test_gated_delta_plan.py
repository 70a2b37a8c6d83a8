"""What planning makes of the gated delta rule and its convolution: one launch, strides, and the order of arguments."""

from __future__ import annotations

import struct

import pytest

from mlx_tessl import _ext

from .test_row_plans import only_launch, roles

plans = _ext.plan
Operand = plans.Operand

B, T, HK, HV, DK, DV = 3, 7, 2, 4, 40, 24


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
    """A threadgroup for each chunk, then one for each 16 columns of V; between them two matrices and four vectors."""
    plan = whole(T)
    prepare, scan = plan.launches
    assert prepare.grid == (chunks, 32, 2)
    assert scan.grid == (7, 32, 2)
    assert plan.scratch == [2 * 32 * chunks * (2 * 64 * 64 + 4 * 64) * 4]
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
