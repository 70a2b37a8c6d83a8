"""Counts of a launch, against what can be counted by hand."""

from __future__ import annotations

import struct
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import mlx_tessl as mt
from mlx_tessl.emulator.flops import count_flops, operations
from mlx_tessl.emulator.meter import Meter
from mlx_tessl.emulator.runtime import Out

from .harness import file, metal


def test_a_row_sum() -> None:
    rows, n, threads = 4, 4096, 256
    a, out = np.ones((rows, n), np.float32), np.zeros(rows, np.float32)
    reading = file("basic").launch("row_sum", [a, Out(out), np.uint32(n)], grid=rows, group=threads, check=True)
    simdgroups = threads // 32
    assert reading.device_read_bytes == a.nbytes + rows * threads * 4  # and n, by each thread
    assert reading.device_written_bytes == out.nbytes
    assert reading.threadgroup_written_bytes == reading.threadgroup_read_bytes == rows * simdgroups * 4
    assert reading.simd_operations == rows * (simdgroups + 1)
    assert reading.threadgroup_barriers == rows
    assert (reading.threadgroups, reading.threads, reading.threadgroup_memory) == (rows, rows * threads, 128)
    assert reading.scalar_flops == rows * n + reading.simd_operations * 31
    assert reading.matrix_flops == 0
    assert reading.divergent_operations == 0
    assert reading.intensity == pytest.approx(reading.scalar_flops / (reading.device_read_bytes + out.nbytes))


def test_a_product() -> None:
    M, N, K = 64, 32, 48
    a, b, out = np.ones((M, K), np.float16), np.ones((K, N), np.float16), np.zeros((M, N), np.float32)
    arguments = [a, b, Out(out), struct.pack("6i", M, N, K, K, N, N)]
    reading = file("matmul2d", 400).launch("slices_half_float_nn", arguments, grid=1, group=128, check=True)
    assert reading.matrix_flops == 2 * M * N * K
    assert reading.matmul2d_runs == 1
    assert reading.device_written_bytes == out.nbytes
    problem = reading.device_read_bytes - a.nbytes - b.nbytes
    assert 0 < problem <= 128 * 24  # at most the argument struct, by each thread


def test_scalar_operations() -> None:
    text = """
    kernel void work(device const float* a [[buffer(0)]], device float* out [[buffer(1)]],
                     uint i [[thread_position_in_grid]]) {
      float x = a[i];
      x = fma(x, x, x);                            // 2
      x = precise::exp(x) / (x + 1.0f);            // 3
      for (uint j = 0; j < i; ++j) { x = x * a[j]; }  // i
      out[i] = x;
    }
    """
    n = 16
    reading = metal(text).launch(
        "work", [np.ones(n, np.float32), Out(np.zeros(n, np.float32))], grid=1, group=n, check=True
    )
    assert reading.scalar_flops == 5 * n + n * (n - 1) // 2


@pytest.mark.parametrize(
    ("line", "n"),
    [
        ("  %3 = fadd float %1, %2", 1),
        ("  %3 = fmul contract <4 x float> %1, %2, !dbg !7", 4),
        ("  %3 = fdiv half %1, %2", 1),
        ("  %3 = tail call float @llvm.fma.f32(float %1, float %2, float %0)", 2),
        ("  %3 = call noundef float @expf(float noundef %2) #5", 1),
        ("  %3 = call <8 x float> @llvm.fma.v8f32(<8 x float> %1, <8 x float> %2, <8 x float> %0)", 16),
        ("  %3 = fneg float %1", 0),
        ("  %3 = load float, ptr %1", 0),
        ("  %3 = call float @llvm.fabs.f32(float %1)", 0),
    ],
)
def test_operations_of_an_instruction(line: str, n: int) -> None:
    assert operations(line) == n


def test_the_emulators_own_code_is_not_counted() -> None:
    body = "entry:\n  %1 = fadd float %0, %0\n  ret float %1\n}"
    ir = f"define float @kernel(float %0) #0 {{\n{body}\ndefine float @own(float %0) #1 {{\n{body}\n"
    ir += "attributes #0 = { sanitize_thread }\nattributes #1 = { disable_sanitizer_instrumentation sanitize_thread }\n"
    assert count_flops(ir).count("store i64") == 1


def test_a_table() -> None:
    a, out = np.ones((2, 64), np.float32), np.zeros(2, np.float32)
    readings = [
        file("basic").launch("row_sum", [a, Out(out), np.uint32(64)], grid=2, group=64, check=check)
        for check in (True, False)
    ]
    meter = Meter(readings)
    lines = str(meter).splitlines()
    assert lines[0].split()[:3] == ["kernel", "grid", "group"]
    assert lines[1].split()[:4] == ["row_sum", "2x1x1", "64x1x1", "1.02kB"]
    assert lines[2].split()[3] == "-"  # bytes are not counted in a fast run
    assert lines[3].startswith("total")
    assert meter.total().threadgroups == 4
    assert len({len(line) for line in lines}) == 1


def test_a_block_within_a_block_is_part_of_both() -> None:
    a = mx.ones((3, 3))
    with mt.emulate(gpu="m1") as outer:
        mx.eval(mt.matmul(a, a))
        with mt.emulate(gpu="m1") as inner:
            mx.eval(mt.matmul(a, a))
        assert len(inner) == 1
        mx.eval(mt.matmul(a, a))
    assert (len(outer), len(inner)) == (3, 1)


@pytest.mark.parametrize("bad", [{"seed": -1}, {"seed": 1.5}, {"ulp_noise": float("nan")}, {"ulp_noise": -1.0}])
def test_numbers_that_cannot_be(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^\[mlx_tessl.emulate\] (seed|ulp_noise) is"), mt.emulate(**bad):
        pass
    with mt.trace() as entries:
        mx.eval(mt.matmul(mx.ones((3, 3)), mx.ones((3, 3))))
    assert [entry.backend for entry in entries] == ["cpu"]
