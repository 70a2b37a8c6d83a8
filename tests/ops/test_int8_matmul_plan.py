"""What planning makes of int8 products."""

from __future__ import annotations

import struct

import pytest

from mlx_tessl import _ext

Operand = _ext.plan.Operand
PORTABLE = {"gpu": "m1", "macos": "15.0"}
TENSOROPS = {"gpu": "m5-pro", "macos": "26.4"}


def matrix(rows: int, columns: int, letter: str = "n", offset: int = 0) -> Operand:
    return Operand([rows, columns], [columns, 1] if letter == "n" else [1, rows], offset)


@pytest.mark.parametrize("device", [PORTABLE, TENSOROPS], ids=["portable", "tensorops"])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("dtype", ["int32", "float32", "float16", "bfloat16"])
def test_kernel(device: dict[str, str], layout: str, dtype: str) -> None:
    a, b = matrix(48, 64, layout[0]), matrix(64, 80, layout[1])
    (launch,) = _ext.plan.int8_matmul(dtype, a, b, **device).launches
    assert launch.kernel.startswith(f"int8_matmul_{launch.capability}_{layout}_{dtype}_")
    assert launch.capability == ("portable" if device is PORTABLE else "tensorops")
    assert [(x.role, x.index) for x in launch.arguments[4:]] == [("unused", 0)] * 3
    assert launch.group == (128, 1, 1)


@pytest.mark.parametrize(("offset", "capability"), [(0, "tensorops"), (4, "portable"), (16, "tensorops")])
def test_tensorops_reads_from_16_bytes_on(offset: int, capability: str) -> None:
    plan = _ext.plan.int8_matmul("int32", matrix(48, 64, offset=offset), matrix(64, 80), **TENSOROPS)
    assert plan.launches[0].capability == capability


@pytest.mark.parametrize(("N", "tile"), [(512, "64x64"), (1024, "128x64")])
def test_tile(N: int, tile: str) -> None:
    plan = _ext.plan.int8_matmul("int32", matrix(1024, 64), matrix(64, N), **TENSOROPS)
    assert plan.launches[0].kernel.endswith(tile)


@pytest.mark.parametrize(("K", "width"), [(8192, 4), (8191, 0)])
def test_bands(K: int, width: int) -> None:
    (launch,) = _ext.plan.int8_matmul("int32", matrix(1024, K), matrix(K, 1024), **TENSOROPS).launches
    assert struct.unpack_from("<7i", launch.bytes_of(launch.arguments[3]))[6] == width


def test_scales_and_bias_are_bound_in_the_order_of_inputs() -> None:
    operands = {"scale_a": Operand([3, 48, 1]), "bias": Operand([80]), "scale_b": Operand([80])}
    (launch,) = _ext.plan.int8_matmul(
        "float16", Operand([3, 48, 64]), Operand([64, 80]), activation="gelu", **operands, **PORTABLE
    ).launches
    assert [(x.role, x.index) for x in launch.arguments[4:]] == [("input", 2), ("input", 3), ("input", 4)]
    values = struct.unpack("<7i2f4x2q8i8q8q30q20q", launch.bytes_of(launch.arguments[3]))
    bias, scale_a, scale_b = values[45:47], values[65:67], values[75:77]
    assert (values[0], bias, scale_a, scale_b) == (144, (0, 1), (1, 0), (0, 1))
    constants = launch.constants
    assert (constants[1], constants[4], constants[12], constants[13]) == (True, 3, True, True)


def test_a_strided_operand_is_copied_bytewise() -> None:
    plan = _ext.plan.int8_matmul("int32", Operand([48, 64], [256, 2]), matrix(64, 80), **PORTABLE)
    assert plan.scratch == [48 * 64]
    assert plan.launches[0].kernel == "copy_strided_uint8"


def test_nothing_to_write_needs_no_launch() -> None:
    assert _ext.plan.int8_matmul("int32", Operand([0, 8]), Operand([8, 8]), **PORTABLE).launches == []
