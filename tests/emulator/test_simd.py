"""Every operation of a simdgroup, among all lanes and among some."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mlx_tessl.emulator.runtime import EmulatorError, Out

from .harness import metal

LANES = np.arange(32)
VALUES = np.random.default_rng(0).integers(-50, 50, 32).astype(np.int32)


def run(expression: str, T: str = "int", values: np.ndarray = VALUES, out_type: str | None = None) -> np.ndarray:
    """The expression in every lane; `x` is the lane's value."""
    out_type = out_type or T
    text = f"""
    kernel void each(device const {T}* a [[buffer(0)]], device {out_type}* out [[buffer(1)]],
                     uint lane [[thread_index_in_simdgroup]]) {{
      const {T} x = a[lane];
      out[lane] = {expression};
    }}
    """
    dtypes = {"int": np.int32, "float": np.float32, "half": np.float16, "uint": np.uint32}
    out = np.zeros(32, dtypes[out_type])
    metal(text).launch("each", [values, Out(out)], grid=1, group=32)
    return out


def gathered(index: np.ndarray) -> np.ndarray:
    return VALUES[index]


SHUFFLES: dict[str, np.ndarray] = {
    "simd_shuffle(x, (lane * 7 + 3) % 32)": (LANES * 7 + 3) % 32,
    "simd_broadcast(x, 5)": np.full(32, 5),
    "simd_broadcast_first(x)": np.full(32, 0),
    "simd_shuffle_xor(x, 9)": LANES ^ 9,
    "simd_shuffle_rotate_up(x, 3)": (LANES - 3) % 32,
    "simd_shuffle_rotate_down(x, 3)": (LANES + 3) % 32,
    "simd_shuffle_up(x, 4)": np.where(LANES >= 4, LANES - 4, LANES),
    "simd_shuffle_down(x, 4)": np.where(LANES < 28, LANES + 4, LANES),
    "quad_shuffle(x, 2)": LANES // 4 * 4 + 2,
    "quad_broadcast(x, 1)": LANES // 4 * 4 + 1,
    "quad_shuffle_xor(x, 3)": LANES ^ 3,
    "quad_shuffle_up(x, 1)": np.where(LANES % 4 >= 1, LANES - 1, LANES),
    "quad_shuffle_down(x, 1)": np.where(LANES % 4 < 3, LANES + 1, LANES),
    "quad_shuffle_rotate_up(x, 1)": LANES // 4 * 4 + (LANES - 1) % 4,
    "quad_shuffle_rotate_down(x, 1)": LANES // 4 * 4 + (LANES + 1) % 4,
}


@pytest.mark.parametrize("expression", SHUFFLES)
def test_shuffles(expression: str) -> None:
    assert np.array_equal(run(expression), gathered(SHUFFLES[expression]))


def test_shuffle_and_fill() -> None:
    up = np.where(LANES >= 3, VALUES[(LANES - 3) % 32], VALUES[(LANES - 3) % 32] + 1000)
    assert np.array_equal(run("simd_shuffle_and_fill_up(x, x + 1000, 3)"), up)
    down = np.where(LANES < 29, VALUES[(LANES + 3) % 32], VALUES[(LANES + 3) % 32] + 1000)
    assert np.array_equal(run("simd_shuffle_and_fill_down(x, x + 1000, 3)"), down)


REDUCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "sum": lambda x: x.sum(-1),
    "max": lambda x: x.max(-1),
    "min": lambda x: x.min(-1),
    "and": lambda x: np.bitwise_and.reduce(x, -1),
    "or": lambda x: np.bitwise_or.reduce(x, -1),
    "xor": lambda x: np.bitwise_xor.reduce(x, -1),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str) -> None:
    assert np.array_equal(run(f"simd_{name}(x)"), np.broadcast_to(REDUCTIONS[name](VALUES), 32))
    quads = np.repeat(REDUCTIONS[name](VALUES.reshape(8, 4)), 4)
    assert np.array_equal(run(f"quad_{name}(x)"), quads)


def test_products_and_scans() -> None:
    few = np.where(LANES % 7 == 0, 2, 1).astype(np.int32)
    assert np.array_equal(run("simd_product(x)", values=few), np.full(32, 32))
    assert np.array_equal(run("simd_prefix_inclusive_sum(x)"), np.cumsum(VALUES))
    assert np.array_equal(run("simd_prefix_exclusive_sum(x)"), np.cumsum(VALUES) - VALUES)
    assert np.array_equal(run("simd_prefix_inclusive_product(x)", values=few), np.cumprod(few))
    assert np.array_equal(run("simd_prefix_exclusive_product(x)", values=few), np.cumprod(few) // few)


def test_half_sums_round_at_each_step() -> None:
    x = np.linspace(100, 250, 32).astype(np.float16)
    tree = x
    while len(tree) > 1:
        tree = tree[0::2] + tree[1::2]
    assert np.array_equal(run("simd_sum(x)", "half", x), np.broadcast_to(tree, 32))


def test_votes() -> None:
    bits = sum(1 << i for i in range(32) if VALUES[i] > 0)
    assert np.all(run("uint(ulong(simd_ballot(x > 0)))", out_type="uint") == bits)
    assert np.all(run("simd_any(x > 40) + 2 * simd_all(x < 60) + 4 * simd_all(x > 0)") == (VALUES > 40).any() + 2)
    assert np.array_equal(run("int(simd_is_first())"), (LANES == 0).astype(np.int32))
    assert np.array_equal(run("int(quad_any(x > 30))"), np.repeat((VALUES.reshape(8, 4) > 30).any(1), 4))
    assert np.array_equal(run("int(quad_all(x > -30))"), np.repeat((VALUES.reshape(8, 4) > -30).all(1), 4))


@pytest.mark.parametrize("order", ["forward", "reverse", "shuffled"])
def test_divergent_lanes_meet_again(order: str) -> None:
    text = """
    kernel void diverge(device int* out [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
      int x = 1;
      if (lane >= 20) {
        x = simd_sum(x);                     // 12 lanes
      } else if (lane < 10) {
        x = 100 * simd_sum(x);               // 10 lanes
      }
      for (uint i = 0; i < lane % 3; ++i) {  // two thirds, then one third of the lanes
        x += simd_sum(1);
      }
      out[lane] = x + 10000 * simd_sum(1);   // all of them
    }
    """
    out = np.zeros(32, np.int32)
    reading = metal(text).launch("diverge", [Out(out)], grid=1, group=32, order=order, seed=3)  # type: ignore[arg-type]
    x = np.where(LANES >= 20, 12, np.where(LANES < 10, 1000, 1))
    twice, once = (LANES % 3 == 2).sum(), (LANES % 3 >= 1).sum()
    x = x + np.where(LANES % 3 >= 1, once, 0) + np.where(LANES % 3 == 2, twice, 0)
    assert np.array_equal(out, x + 320000)
    assert reading.divergent_operations == 4


def test_operations_between_branches_on_the_lane_are_not_split() -> None:
    text = """
    kernel void rows(device const float* a [[buffer(0)]], device float* out [[buffer(1)]],
                     uint lane [[thread_index_in_simdgroup]]) {
      float result[4];
      for (int row = 0; row < 4; ++row) {
        result[row] = a[row * 32 + lane];
      }
      for (int row = 0; row < 4; ++row) {
        result[row] = simd_sum(result[row]);
        if (lane == 0) {
          out[row] = result[row];
        }
      }
    }
    """
    a, out = np.arange(128, dtype=np.float32), np.zeros(4, np.float32)
    metal(text).launch("rows", [a, Out(out)], grid=1, group=32)
    assert np.array_equal(out, a.reshape(4, 32).sum(1))


def test_reading_an_absent_lane_gives_nan() -> None:
    text = """
    kernel void absent(device float* out [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
      float x = 1;
      if (lane < 16) {
        x = simd_shuffle(x, ushort(lane + 8));
      }
      out[lane] = x;
    }
    """
    out = np.zeros(32, np.float32)
    metal(text).launch("absent", [Out(out)], grid=1, group=32)
    assert np.array_equal(np.isnan(out), (LANES >= 8) & (LANES < 16))


MATRIX = """
kernel void product(device const {T}* a [[buffer(0)]], device const {T}* b [[buffer(1)]],
                    device float* out [[buffer(2)]], device {T}* turned [[buffer(3)]]) {{
  simdgroup_matrix<{T}, 8, 8> A, B;
  simdgroup_matrix<float, 8, 8> C(1.0f);  // the identity
  simdgroup_load(A, a, 12, ulong2(2, 1));
  simdgroup_load(B, b, 8, ulong2(0, 0), true);
  simdgroup_multiply_accumulate(C, A, B, C);
  C.thread_elements()[0] += 100;
  simdgroup_store(C, out);
  simdgroup_store(B, turned);
}}
"""


@pytest.mark.parametrize(("T", "dtype"), [("float", np.float32), ("half", np.float16)])
def test_simdgroup_matrix(T: str, dtype: type) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.integers(-8, 8, (10, 12)).astype(dtype), rng.integers(-8, 8, (8, 8)).astype(dtype)
    out, turned = np.zeros((8, 8), np.float32), np.zeros((8, 8), dtype)
    reading = metal(MATRIX.format(T=T)).launch("product", [a, b, Out(out), Out(turned)], grid=1, group=32, check=True)
    expected = a[1:9, 2:10].astype(np.float64) @ b.T.astype(np.float64) + np.eye(8)
    expected[:, 0::2] += 100  # a lane's first element is in an even column
    assert np.array_equal(out, expected)
    assert np.array_equal(turned, b.T)
    assert reading.matrix_flops == 1024


def test_matrix_product_of_some_lanes_is_refused() -> None:
    text = """
    kernel void some(device float* out [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
      simdgroup_float8x8 a(1.0f), b(1.0f), c(0.0f);
      if (lane < 31) {
        simdgroup_multiply(c, a, b);
      }
      simdgroup_store(c, out);
    }
    """
    with pytest.raises(EmulatorError, match="by some lanes only"):
        metal(text).launch("some", [Out(np.zeros(64, np.float32))], grid=1, group=32)
