"""What planning makes of sparse_max_pool: kernels, copies, arguments, sizes past 2^31."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from mlx_tessl import _ext

Operand = _ext.plan.Operand

M1 = {"gpu": "m1", "macos": "14.0"}
M5 = {"gpu": "m5-pro", "macos": "26.4"}
HAS_LENGTHS, HAS_BIAS, VECTOR_HIDDEN, VECTOR_WEIGHT, ACTIVATION, SUMS, HAS_TOKENS = range(20, 27)


def call(
    rows: int,
    tokens: int,
    units: int,
    words: int,
    dtype: str = "bfloat16",
    *,
    hidden: Operand | None = None,
    weight: Operand | None = None,
    bias: bool = True,
    lengths: bool = True,
    **keywords: Any,
) -> Any:
    return _ext.plan.SparseMaxPool(
        dtype,
        hidden or Operand([rows, tokens, units]),
        weight or Operand([words, units]),
        Operand([words]) if bias else None,
        Operand([rows]) if lengths else None,
        **keywords,
    )


def args_of(launch: Any) -> dict[str, int]:
    names = ("tokens", "words", "units", "_", "row", "token", "word", "bias", "length")
    return dict(zip(names, struct.unpack("<4i5q", launch.bytes_of(launch.arguments[3])), strict=True))


@pytest.mark.parametrize(
    ("device", "tokens", "dtype", "relaxed", "kernel"),
    [
        (M1, 1, "float32", True, "sparse_max_pool_portable_32_float32"),
        (M1, 32, "bfloat16", False, "sparse_max_pool_portable_32_bfloat16"),
        (M1, 33, "bfloat16", False, "sparse_max_pool_portable_64_bfloat16"),
        ({"gpu": "m5", "macos": "26.1"}, 33, "float16", False, "sparse_max_pool_portable_64_float16"),
        (M5, 1, "float16", False, "sparse_max_pool_tensorops_float16"),
        (M5, 500, "float32", False, "sparse_max_pool_tensorops_float32"),
        (M5, 500, "float32", True, "sparse_max_pool_tensorops_float32_relaxed"),
    ],
)
def test_kernel(device: dict[str, str], tokens: int, dtype: str, relaxed: bool, kernel: str) -> None:
    (launch,) = call(7, tokens, 768, 30522, dtype, relaxed=relaxed, **device).plan().launches
    assert launch.kernel == kernel
    assert launch.grid == (477, 7, 1)
    assert launch.group == (128, 1, 1)


def test_arguments() -> None:
    plan = call(3, 20, 768, 30522, **M5).plan()
    (launch,) = plan.launches
    assert plan.scratch == []
    assert [a.role for a in launch.arguments] == ["input", "input", "output", "bytes", "input", "input"]
    assert [a.index for a in launch.arguments[:2]] == [0, 1]
    assert [a.index for a in launch.arguments[4:]] == [3, 2]  # lengths, then bias
    assert args_of(launch) == {
        "tokens": 20,
        "words": 30522,
        "units": 768,
        "_": 0,
        "row": 20 * 768,
        "token": 768,
        "word": 768,
        "bias": 1,
        "length": 1,
    }


def test_absent_arguments() -> None:
    (launch,) = call(3, 20, 768, 100, bias=False, lengths=False, **M1).plan().launches
    assert [a.role for a in launch.arguments] == ["input", "input", "output", "bytes", "unused", "unused"]
    constants = dict(launch.constants)
    assert not constants[HAS_LENGTHS]
    assert not constants[HAS_BIAS]
    (launch,) = call(3, 20, 768, 100, bias=False, **M1).plan().launches
    assert launch.arguments[4].index == 2  # lengths come right after weight


def test_constants() -> None:
    (launch,) = call(3, 20, 768, 100, activation=2, sums=True, **M1).plan().launches
    assert dict(launch.constants) == {
        HAS_LENGTHS: True,
        HAS_BIAS: True,
        VECTOR_HIDDEN: True,
        VECTOR_WEIGHT: True,
        ACTIVATION: 2,
        SUMS: True,
        HAS_TOKENS: True,
    }
    (launch,) = call(3, 20, 767, 100, **M1).plan().launches
    assert not dict(launch.constants)[VECTOR_HIDDEN]
    assert not dict(launch.constants)[VECTOR_WEIGHT]


@pytest.mark.parametrize(
    ("changes", "obstacle"),
    [
        ({}, None),
        ({"units": 770}, "does not start on 16 bytes"),
        ({"weight": Operand([100, 768], [768, 1], 8)}, "does not start on 16 bytes"),
        ({"hidden": Operand([3, 20, 768], [20 * 768, 0, 1])}, "overlap or run backwards"),
        ({"hidden": Operand([3, 20, 768], [2**30, 2**25, 1])}, "a tile spans 2 GB"),
        ({"hidden": Operand([3, 20, 768], [768, 3 * 768, 1])}, None),  # tokens outermost: read as they lie
        (M1, "no matrix unit"),
    ],
)
def test_what_matmul2d_cannot_read(changes: dict[str, Any], obstacle: str | None) -> None:
    options = {"units": 768, **M5, **changes}
    found = call(3, 20, options.pop("units"), 100, **options)
    assert (found.tensorops_obstacle is None) == (obstacle is None)
    assert obstacle is None or obstacle in found.tensorops_obstacle
    launch = found.plan().launches[-1]
    assert launch.capability == ("tensorops" if obstacle is None else "portable")


@pytest.mark.parametrize("device", [M1, M5])
def test_units_apart_are_copied(device: dict[str, str]) -> None:
    hidden = Operand([3, 20, 64], [20 * 64, 1, 20])
    plan = call(3, 20, 64, 100, hidden=hidden, **device).plan()
    copy, launch = plan.launches
    assert copy.kernel == "copy_strided_uint16"
    assert plan.scratch == [3 * 20 * 64 * 2]
    assert launch.arguments[0].role == "scratch_in"
    assert args_of(launch)["token"] == 64


@pytest.mark.parametrize("shape", [(0, 4, 8, 5), (2, 4, 8, 0)])
def test_nothing_to_write(shape: tuple[int, int, int, int]) -> None:
    assert call(*shape, **M5).plan().launches == []


@pytest.mark.parametrize("device", [M1, M5])
def test_no_tokens(device: dict[str, str]) -> None:
    (launch,) = call(2, 0, 8, 5, **device).plan().launches
    assert not dict(launch.constants)[HAS_TOKENS]
    assert [a.role for a in launch.arguments[:3]] == ["unused", "unused", "output"]


def test_past_two_to_the_31st() -> None:
    (launch,) = call(40_000, 8192, 4096, 1_000_000, **M5).plan().launches
    assert args_of(launch)["row"] == 8192 * 4096
    assert launch.grid == (15625, 40_000, 1)
