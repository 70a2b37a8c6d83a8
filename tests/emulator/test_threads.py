"""Threads, threadgroups, their memory, atomics and function constants."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from mlx_tessl.emulator.runtime import Out, Updated

from .harness import file, metal

ORDERS = ["forward", "reverse", "shuffled"]
orders = pytest.mark.parametrize("order", ORDERS)


def test_positions() -> None:
    names = {
        "thread_position_in_grid": 3,
        "thread_position_in_threadgroup": 3,
        "threadgroup_position_in_grid": 3,
        "threads_per_grid": 3,
        "threadgroups_per_grid": 3,
        "threads_per_threadgroup": 3,
        "thread_index_in_threadgroup": 1,
        "thread_index_in_simdgroup": 1,
        "simdgroup_index_in_threadgroup": 1,
        "simdgroups_per_threadgroup": 1,
        "threads_per_simdgroup": 1,
        "thread_index_in_quadgroup": 1,
        "quadgroup_index_in_threadgroup": 1,
    }
    parameters = ", ".join(f"{'uint3' if n == 3 else 'uint'} {name} [[{name}]]" for name, n in names.items())
    components = [f"{name}.{c}" if n == 3 else name for name, n in names.items() for c in "xyz"[:n]]
    stores = " ".join(f"out[at + {i}] = {component};" for i, component in enumerate(components))
    text = f"""
    kernel void positions(device uint* out [[buffer(0)]], {parameters}) {{
      const uint3 t = thread_position_in_grid;
      const uint at = (t.x + threads_per_grid.x * (t.y + threads_per_grid.y * t.z)) * {len(components)};
      {stores}
    }}
    """
    grid, group = (2, 3, 2), (6, 5, 2)
    shape = tuple(g * n for g, n in zip(grid, group, strict=True))[::-1]
    out = np.zeros((*shape, len(components)), np.uint32)
    metal(text).launch("positions", [Out(out)], grid=grid, group=group, check=True)
    z, y, x = np.indices(shape)
    tx, ty, tz = x % 6, y % 5, z % 2
    flat = tx + 6 * (ty + 5 * tz)
    full = np.ones(shape, int)
    columns = [x, y, z, tx, ty, tz, x // 6, y // 5, z // 2]
    columns += [full * n for n in (12, 15, 4, 2, 3, 2, 6, 5, 2)]
    columns += [flat, flat % 32, flat // 32, full * 2, full * 32, flat % 4, flat // 4]
    assert np.array_equal(out, np.stack(columns, -1))


def test_a_grid_given_in_threads_has_partial_threadgroups() -> None:
    text = """
    kernel void partial(device uint* out [[buffer(0)]], uint i [[thread_position_in_grid]],
                        uint n [[threads_per_threadgroup]], uint all [[threads_per_grid]]) {
      out[i] = n * 1000 + all;
    }
    """
    out = np.zeros(100, np.uint32)
    metal(text).launch("partial", [Out(out)], grid=4, group=32, threads=100, check=True)
    assert np.array_equal(out, np.where(np.arange(100) < 96, 32000, 4000) + 100)


@orders
@pytest.mark.parametrize("check", [False, True])
def test_row_sums(order: str, check: bool) -> None:
    a = np.random.default_rng(0).integers(-9, 9, (5, 1000)).astype(np.float32)
    out = np.zeros(5, np.float32)
    arguments = [a, Out(out), np.uint32(1000)]
    reading = file("basic").launch("row_sum", arguments, grid=5, group=96, order=order, check=check, seed=2)  # type: ignore[arg-type]
    assert np.array_equal(out, a.sum(1))
    assert reading.threadgroup_barriers == 5
    assert reading.threadgroup_memory == 128


def test_function_constants_and_gated_arguments() -> None:
    a, bias = np.arange(8, dtype=np.float32), np.full(8, 10, np.float32)
    out = np.zeros(8, np.float32)
    scale = struct.pack("fi", 2.0, 8)
    source = file("basic")
    for negate, shift, expected in (
        (False, 0, a * 2),
        (False, 3, a * 2 + 3),
        (True, 0, -(a * 2 + 10)),
        (True, 5, 5 - (a * 2 + 10)),
    ):
        buffers = [a, bias if negate else None, Out(out), scale]
        source.launch("scale_add", buffers, grid=1, group=8, constants={0: negate, 1: shift}, check=True)
        assert np.array_equal(out, expected)


def test_threadgroup_memory_arguments_and_declarations_are_apart() -> None:
    text = """
    template <typename T>
    void fill(threadgroup T* to, T value, uint i) { to[i] = value; }
    kernel void memory(device float* out [[buffer(0)]], threadgroup float* first [[threadgroup(0)]],
                       threadgroup half* second [[threadgroup(1)]], uint i [[thread_index_in_threadgroup]]) {
      threadgroup float third[32], fourth[2][32];
      threadgroup uint counter;
      fill(first, 1.0f, i);
      fill(second, half(2), i);
      fill(third, 4.0f, i);
      fill(fourth[1], 8.0f, i);
      if (i == 0) { counter = 16; }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      const uint j = 31 - i;
      out[i] = first[j] + second[j] + third[j] + fourth[1][j] + counter;
    }
    """
    out = np.zeros(32, np.float32)
    reading = metal(text).launch("memory", [Out(out)], grid=1, group=32, threadgroup_memory=[128, 64], check=True)
    assert np.all(out == 31)
    assert reading.threadgroup_memory == 128 + 64 + 128 + 256 + 4


def test_threadgroup_memory_starts_as_nan_in_each_threadgroup() -> None:
    text = """
    kernel void stale(device float* out [[buffer(0)]], uint g [[threadgroup_position_in_grid]]) {
      threadgroup float x;
      out[g] = x;
      x = 1;
    }
    """
    out = np.zeros(3, np.float32)
    metal(text).launch("stale", [Out(out)], grid=3, group=1)
    assert np.isnan(out).all()


@orders
def test_atomics(order: str) -> None:
    text = """
    constant auto relaxed = memory_order_relaxed;
    kernel void count(device atomic_uint* histogram [[buffer(0)]], device atomic_float* sum [[buffer(1)]],
                      device atomic_int* extremes [[buffer(2)]], uint i [[thread_position_in_grid]]) {
      threadgroup atomic_uint local;
      if (i % 64 == 0) { atomic_store_explicit(&local, 0, relaxed); }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      atomic_fetch_add_explicit(&local, 1, relaxed);
      atomic_fetch_add_explicit(&histogram[i % 5], 1u, relaxed);
      atomic_fetch_add_explicit(sum, 0.5f, relaxed);
      atomic_fetch_min_explicit(&extremes[0], -int(i), relaxed);
      atomic_fetch_max_explicit(&extremes[1], int(i), relaxed);
      uint old = atomic_load_explicit(&histogram[5], relaxed);
      while (!atomic_compare_exchange_weak_explicit(&histogram[5], &old, old + 2, relaxed, relaxed)) {}
      threadgroup_barrier(mem_flags::mem_threadgroup);
      if (i % 64 == 0) {
        atomic_fetch_add_explicit(&histogram[6], atomic_load_explicit(&local, relaxed), relaxed);
      }
    }
    """
    histogram, total, extremes = np.zeros(7, np.uint32), np.zeros(1, np.float32), np.zeros(2, np.int32)
    buffers = [Updated(histogram), Updated(total), Updated(extremes)]
    metal(text).launch("count", buffers, grid=4, group=64, order=order, check=True)  # type: ignore[arg-type]
    assert histogram.tolist() == [52, 51, 51, 51, 51, 512, 256]
    assert total[0] == 128
    assert extremes.tolist() == [-255, 255]


def test_overloads_by_address_space_become_one() -> None:
    text = """
    inline float first(const device float* p) { return p[0]; }
    inline float first(const threadgroup float* p) { return p[0]; }
    inline float first(const thread float* p) { return p[0]; }
    struct Reader {
      float operator()(const device float* p) const { return p[1]; }
      float operator()(const threadgroup float* p) const { return p[1]; }
    };
    kernel void spaces(const device float* a [[buffer(0)]], device float* out [[buffer(1)]]) {
      threadgroup float x[2];
      x[0] = x[1] = 10;
      const float y[] = {100};
      out[0] = first(a) + first(x) + first(y) + Reader()(a) + Reader()(x);
    }
    """
    out = np.zeros(1, np.float32)
    metal(text).launch("spaces", [np.array([1, 2], np.float32), Out(out)], grid=1, group=1)
    assert out[0] == 123


def test_templates_and_host_names() -> None:
    text = """
    #define instantiate(name, T, N) \\
      template [[host_name(#name "_" #N)]] [[kernel]] \\
      void scale<T, N>(device T* out [[buffer(0)]], uint i [[thread_position_in_grid]]);
    template <typename T, int N>
    [[kernel]] void scale(device T* out [[buffer(0)]], uint i [[thread_position_in_grid]]) { out[i] = T(N) * T(i); }
    instantiate(scale_half, half, 2)
    instantiate(scale_float, float, 3)
    [[host_name("renamed")]] [[kernel]] void original(device float* out [[buffer(0)]]) { out[0] = 7; }
    """
    source = metal(text)
    assert source.kernel_names() == ["renamed", "scale_float_3", "scale_half_2"]
    half, single = np.zeros(4, np.float16), np.zeros(4, np.float32)
    source.launch("scale_half_2", [Out(half)], grid=1, group=4)
    source.launch("scale_float_3", [Out(single)], grid=1, group=4)
    assert half.tolist() == [0, 2, 4, 6]
    assert single.tolist() == [0, 3, 6, 9]
    source.launch("renamed", [Updated(single)], grid=1, group=1)
    assert single[0] == 7
