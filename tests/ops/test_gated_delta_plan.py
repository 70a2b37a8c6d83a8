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
    assert dict(delta(**optional).constants) == {0: True, 1: True, 2: True, 3: True, 4: False, 5: False}
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


def test_beyond_32_bits() -> None:
    q = Operand([2, 1 << 20, 16, 128])
    v, g = Operand([2, 1 << 20, 16, 128]), Operand([2, 1 << 20, 16])
    launch = only_launch(plans.gated_delta("float16", q, q, v, g, g))
    assert struct.unpack_from("<q", launch.bytes_of(launch.arguments[-1]), 24) == (1 << 31,)


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
