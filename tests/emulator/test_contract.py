"""A launch is held to what its kernel declares."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from mlx_tessl.emulator.runtime import EmulatorError, Out

from .harness import file, metal

A = np.zeros(8, np.float32)
SCALE = struct.pack("fi", 1.0, 8)
LAUNCH: dict[str, Any] = {
    "buffers": [A, A.copy(), Out(np.zeros(8, np.float32)), SCALE],
    "grid": 1,
    "group": 8,
    "constants": {0: True, 1: 0},
}


def with_buffer(index: int, value: Any) -> dict[str, Any]:
    buffers = list(LAUNCH["buffers"])
    buffers[index : index + 1] = [value]
    return {"buffers": buffers}


def test_the_launch_itself() -> None:
    file("basic").launch("scale_add", **LAUNCH)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_buffer(0, None), r"nothing is bound to buffer 0 \('a'\)"),
        (with_buffer(1, None), r"nothing is bound to buffer 1 \('bias'\)"),
        (with_buffer(3, None), r"nothing is bound to buffer 3 \('scale'\)"),
        (with_buffer(3, SCALE + b"\0" * 4), r"buffer 3 \('scale'\) has 12 bytes; the kernel's type has 8"),
        (with_buffer(3, SCALE[:4]), r"buffer 3 \('scale'\) has 4 bytes; the kernel's type has 8"),
        (with_buffer(3, np.zeros(1, np.float32)), "fewer than the kernel's type, which has 8"),
        (with_buffer(0, Out(A)), r"buffer 0 \('a'\) is an output, but the kernel has it as const"),
        (with_buffer(2, SCALE), r"buffer 2 \('out'\) is constant data, but the kernel may write it"),
        (with_buffer(0, np.zeros(40, np.uint8)[1:33]), r"buffer 0 \('a'\) is not aligned to 4 bytes"),
        ({"buffers": [*LAUNCH["buffers"], A]}, "binds buffer 4, which the kernel does not declare"),
        ({"constants": {0: True}}, r"function constant 1 \('shift'\) is not set"),
        ({"constants": {0: True, 1: 0, 9: 1}}, "sets function constant 9, which the source does not declare"),
        ({"constants": {0: True, 1: 0.5}}, r"function constant 1 \('shift'\) is set with another type"),
        ({"constants": {0: 1, 1: 0}}, r"function constant 0 \('negate'\) is set with another type"),
        ({"group": 1025}, "1025 threads in a threadgroup; 1 to 1024 are allowed"),
        ({"group": (32, 0)}, "0 threads in a threadgroup"),
        ({"grid": (1, 0)}, "a grid of no threadgroups"),
        ({"threadgroup_memory": [16]}, "sets threadgroup memory 0, which the kernel does not declare"),
    ],
)
def test_what_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(EmulatorError, match=message):
        file("basic").launch("scale_add", **(LAUNCH | change))


def test_an_argument_whose_gate_is_off_may_be_absent() -> None:
    file("basic").launch("scale_add", **(LAUNCH | with_buffer(1, None) | {"constants": {0: False, 1: 0}}))


def test_a_kernels_own_limit_of_threads() -> None:
    buffers = [np.zeros((1, 8), np.float32), Out(np.zeros(1, np.float32)), np.uint32(8)]
    file("basic").launch("row_sum", buffers, grid=1, group=512)
    with pytest.raises(EmulatorError, match="544 threads in a threadgroup; 1 to 512 are allowed"):
        file("basic").launch("row_sum", buffers, grid=1, group=544)


MEMORY = """
kernel void memory(device float* out [[buffer(0)]], threadgroup float* given [[threadgroup(0)]]) {{
  threadgroup float own[{floats}];
  own[0] = given[0] = 1;
  out[0] = own[0];
}}
"""


@pytest.mark.parametrize(
    ("floats", "given", "message"),
    [
        (4096, 16384, None),
        (4096, 16400, r"threadgroup memory comes to 32784 bytes with 'own'; 32768 are allowed"),
        (4, 32784, "32784 bytes of threadgroup memory; 32768 are allowed"),
        (4, 40, "40 bytes of threadgroup memory; a multiple of 16"),
        (4, 0, r"no threadgroup memory for \[\[threadgroup\(0\)\]\] \('given'\)"),
    ],
)
def test_threadgroup_memory(floats: int, given: int, message: str | None) -> None:
    source, buffers = metal(MEMORY.format(floats=floats)), [Out(np.zeros(1, np.float32))]
    sizes = [given] if given else []
    if message is None:
        source.launch("memory", buffers, grid=1, group=1, threadgroup_memory=sizes)
    else:
        with pytest.raises(EmulatorError, match=message):
            source.launch("memory", buffers, grid=1, group=1, threadgroup_memory=sizes)


def test_constants_that_the_source_asks_about_may_be_unset() -> None:
    text = """
    constant int given [[function_constant(3)]];
    constant int value = is_function_constant_defined(given) ? given : 7;
    kernel void ask(device int* out [[buffer(0)]]) { out[0] = value; }
    """
    out = np.zeros(1, np.int32)
    for constants, expected in (({}, 7), ({3: 5}, 5)):
        metal(text).launch("ask", [Out(out)], grid=1, group=1, constants=constants)
        assert out[0] == expected


def test_an_unknown_kernel() -> None:
    from mlx_tessl.emulator.tokens import SourceError

    with pytest.raises(SourceError, match="no kernel named 'absent'; there are: row_sum, scale_add"):
        file("basic").launch("absent", [], grid=1, group=1)
