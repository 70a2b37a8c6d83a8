"""Planted bugs: each is caught, says where it is, and its repaired twin passes."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from mlx_tessl.emulator.runtime import EmulatorError, Out, Source

from .harness import file, metal

N = 256

# Each thread takes the value of the thread 64 further on through threadgroup memory, twice.
EXCHANGE = """
kernel void exchange(device const float* a [[buffer(0)]], device float* out [[buffer(1)]],
                     uint i [[thread_index_in_threadgroup]]) {{
  threadgroup float shared[256];
  shared[i] = a[i];
  {first}
  const float x = shared[(i + 64) % 256];
  {second}
  shared[i] = x + 1;
  {third}
  out[i] = shared[(i + 64) % 256];
}}
"""
BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"
BARRIERS = {"first": BARRIER, "second": BARRIER, "third": BARRIER}


def launch_exchange(**barriers: str) -> np.ndarray:
    a, out = np.arange(N, dtype=np.float32), np.zeros(N, np.float32)
    source = metal(EXCHANGE.format(**(BARRIERS | barriers)))
    source.launch("exchange", [a, Out(out)], grid=1, group=N, check=True)
    return out


def test_with_all_barriers() -> None:
    assert np.array_equal(launch_exchange(), (np.arange(N) + 128) % N + 1)


@pytest.mark.parametrize("place", BARRIERS)
@pytest.mark.parametrize(
    "instead",
    [
        "",
        "threadgroup_barrier(mem_flags::mem_none);",
        "threadgroup_barrier(mem_flags::mem_device);",
        "simdgroup_barrier(mem_flags::mem_threadgroup);",
    ],
)
def test_a_missing_barrier(place: str, instead: str) -> None:
    with pytest.raises(
        EmulatorError, match=r"race: thread \d+ of threadgroup .* threadgroup shared at byte|nothing has written"
    ):
        launch_exchange(**{place: instead})


def test_a_simdgroup_barrier_orders_its_own_lanes() -> None:
    text = """
    kernel void own(device float* out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
      threadgroup float shared[64];
      shared[i] = i;
      BARRIER
      out[i] = shared[i ^ 5];
    }
    """
    out = np.zeros(64, np.float32)
    good = text.replace("BARRIER", "simdgroup_barrier(mem_flags::mem_threadgroup);")
    metal(good).launch("own", [Out(out)], grid=1, group=64, check=True)
    assert np.array_equal(out, np.arange(64) ^ 5)
    for bad in ("", "simdgroup_barrier(mem_flags::mem_none);"):
        with pytest.raises(EmulatorError, match=r"race|nothing has written"):
            metal(text.replace("BARRIER", bad)).launch("own", [Out(out)], grid=1, group=64, check=True)


def test_a_simdgroup_barrier_orders_what_all_its_lanes_read() -> None:
    text = """
    kernel void all_read(device float* out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
      threadgroup float shared[2];
      const uint simdgroup = i / 32;
      if (i % 32 == 0) {
        shared[simdgroup] = i;
      }
      simdgroup_barrier(mem_flags::mem_threadgroup);
      const float first = shared[simdgroup];
      BARRIER
      if (i % 32 == 0) {
        shared[simdgroup] = first + 1;
      }
      simdgroup_barrier(mem_flags::mem_threadgroup);
      out[i] = first + shared[simdgroup];
    }
    """
    out = np.zeros(64, np.float32)
    good = text.replace("BARRIER", "simdgroup_barrier(mem_flags::mem_threadgroup);")
    metal(good).launch("all_read", [Out(out)], grid=1, group=64, check=True)
    assert np.array_equal(out, np.arange(64) // 32 * 64 + 1)
    for bad in (text.replace("BARRIER", ""), good.replace("shared[simdgroup];\n      sim", "shared[0];\n      sim")):
        with pytest.raises(EmulatorError, match=r"race"):
            metal(bad).launch("all_read", [Out(out)], grid=1, group=64, check=True)


def test_a_race_in_device_memory_within_a_threadgroup() -> None:
    text = """
    kernel void device_race(device float* out [[buffer(0)]], device float* copy [[buffer(1)]],
                            uint i [[thread_position_in_threadgroup]]) {
      out[i] = i;
      threadgroup_barrier(FLAGS);
      copy[i] = out[i ^ 40];
    }
    """
    buffers = [Out(np.zeros(64, np.float32)), Out(np.zeros(64, np.float32))]
    metal(text.replace("FLAGS", "mem_flags::mem_device")).launch("device_race", buffers, grid=1, group=64, check=True)
    with pytest.raises(EmulatorError, match=r"race: thread .* output 0 at byte"):
        metal(text.replace("FLAGS", "mem_flags::mem_threadgroup")).launch(
            "device_race", buffers, grid=1, group=64, check=True
        )


def test_reading_the_output_of_another_threadgroup() -> None:
    text = """
    kernel void neighbour(device float* out [[buffer(0)]], device float* sum [[buffer(1)]],
                          uint g [[threadgroup_position_in_grid]]) {
      out[g] = g;
      sum[g] = g == 0 ? 0.0f : out[g - 1];
    }
    """
    buffers = [Out(np.zeros(4, np.float32)), Out(np.zeros(4, np.float32))]
    with pytest.raises(EmulatorError, match="which a thread of another threadgroup wrote in the same launch"):
        metal(text).launch("neighbour", buffers, grid=4, group=1, check=True)


def test_two_threadgroups_writing_one_element() -> None:
    text = "kernel void both(device float* out [[buffer(0)]]) { out[0] = 1; }"
    with pytest.raises(
        EmulatorError, match=r"race: .* writes output 0 at byte 0, which a thread of another threadgroup wrote"
    ):
        metal(text).launch("both", [Out(np.zeros(1, np.float32))], grid=2, group=1, check=True)


COPY = """
kernel void copy(device const float* a [[buffer(0)]], device float* out [[buffer(1)]], constant uint& n [[buffer(2)]],
                 uint i [[thread_position_in_grid]]) {{
  threadgroup float tile[64];
  if (i {less} n) {{
    {body}
  }}
}}
"""


def launch_copy(less: str = "<", body: str = "out[i] = a[i];", n: int = 100, grid: int = 2) -> np.ndarray:
    a, out = np.arange(100, dtype=np.float32), np.zeros(100, np.float32)
    metal(COPY.format(less=less, body=body)).launch(
        "copy", [a, Out(out), np.uint32(n)], grid=grid, group=64, check=True
    )
    return out


def test_the_copy_itself() -> None:
    assert np.array_equal(launch_copy(), np.arange(100))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"less": "<="},
            r"out of bounds: thread 36 of threadgroup \(1, 0, 0\) reads 4 bytes at byte 400 of input 0, which has 400",
        ),
        ({"body": "out[i + 1] = a[i];"}, "writes 4 bytes at byte 400 of output 1"),
        ({"body": "out[i] = a[int(i) - 1];"}, "reads 4 bytes at byte -4 of input 0"),
        ({"body": "out[i] = a[i + 100000000];"}, "far from every buffer"),
        ({"body": "tile[i] = a[i]; out[i] = tile[i];"}, "at byte 256 of threadgroup tile, which has 256 bytes"),
        ({"body": "out[i] = tile[i % 64];"}, "reads threadgroup tile at byte 0, which nothing has written"),
        ({"body": "out[i] = out[i] + a[i];"}, "reads output 1 at byte 0, which nothing has written"),
        (
            {"body": "const_cast<device float*>(a)[i] = 1; out[i] = 1;"},
            "writes input 0 at byte 0, which the launch binds as an input",
        ),
        ({"n": 90}, "byte 360 of output 1, of 400, is not written: the grid does not cover the output"),
        ({"grid": 1}, "byte 256 of output 1, of 400, is not written"),
    ],
)
def test_bounds_and_unwritten_memory(change: dict[str, object], message: str) -> None:
    with pytest.raises(EmulatorError, match=message):
        launch_copy(**change)  # type: ignore[arg-type]


def test_results_that_depend_on_the_order_of_threads() -> None:
    text = """
    kernel void last(device atomic_uint* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
      atomic_store_explicit(out, i, memory_order_relaxed);
    }
    """
    with pytest.raises(EmulatorError, match="results depend on the order of threads: forward and reverse differ"):
        metal(text).launch("last", [Out(np.zeros(1, np.uint32))], grid=2, group=32, check=True)


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("if (i >= 100) { return; }", "a threadgroup barrier is reached after some threads have returned"),
        (
            "if (i >= 64) { threadgroup_barrier(mem_flags::mem_none); out[i] = 0; return; }",
            "threads wait at different threadgroup barriers",
        ),
    ],
)
def test_barriers_that_not_all_threads_reach(condition: str, message: str) -> None:
    text = f"""
    kernel void partial(device float* out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {{
      out[i] = 1;
      {condition}
      threadgroup_barrier(mem_flags::mem_none);
    }}
    """
    with pytest.raises(EmulatorError, match=message):
        metal(text).launch("partial", [Out(np.zeros(128, np.float32))], grid=1, group=128, check=True)


def test_a_missing_barrier_before_matmul2d() -> None:
    a, b = np.ones((30, 64), np.float16), np.ones((64, 31), np.float16)
    arguments = [a, b, Out(np.zeros((30, 31), np.float32)), struct.pack("6i", 30, 31, 64, 64, 31, 31)]
    with pytest.raises(EmulatorError, match=r"race: thread .* reads threadgroup (left|right)"):
        file("matmul2d", 400, "NO_BARRIER").launch("staged", arguments, grid=1, group=64, check=True)


# Mutants of the portable product of tests/emulator/kernels/tile_product.metal -----------------------------------------


def launch_product(source: Source) -> None:
    M, N, K = 37, 29, 45
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((M, K)).astype(np.float32), rng.standard_normal((K, N)).astype(np.float32)
    out = np.zeros((M, N), np.float32)
    source.launch("tile_product", [a, b, Out(out), struct.pack("3i", M, N, K)], grid=(2, 3), group=128, check=True)
    assert np.allclose(out, a.astype(np.float64) @ b.astype(np.float64), atol=1e-4)


def test_the_product_itself() -> None:
    launch_product(file("tile_product"))


MUTANTS = {
    "no barrier after loading": "NO_BARRIER_AFTER_LOAD",
    "no barrier before the next load": "NO_BARRIER_BEFORE_LOAD",
    "K tail not zeroed": "K_TAIL_NOT_ZEROED",
    "row and column swapped in the tile's origin": "SWAPPED_TILE",
    "row limit off by one": "ROW_LIMIT_OFF_BY_ONE",
    "column limit off by one": "COLUMN_LIMIT_OFF_BY_ONE",
    "A read with B's pitch": "WRONG_PITCH",
    "last block of K left out": "LAST_BLOCK_LEFT_OUT",
    "accumulator not zeroed": "ACCUMULATOR_NOT_ZEROED",
    "store of every tile without limits": "STORE_WITHOUT_LIMITS",
    "B not transposed where it should be": "B_TRANSPOSED",
    "two simdgroups write the same quarter": "SAME_QUARTER",
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_killed(mutant: str) -> None:
    with pytest.raises((EmulatorError, AssertionError)):
        launch_product(file("tile_product", 310, f"{MUTANTS[mutant]}=1"))
