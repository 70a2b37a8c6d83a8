"""half and bfloat are bit for bit what numpy and ml_dtypes say; vectors and integer functions mean what MSL says."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from mlx_tessl.emulator.compiler import CompileError
from mlx_tessl.emulator.runtime import Out

from .harness import metal, random_bits

N = 1 << 16
TYPES = {"half": np.dtype(np.float16), "bfloat": np.dtype(ml_dtypes.bfloat16)}
types = pytest.mark.parametrize("name", TYPES)

BINARY = """
kernel void binary(device const {T}* a [[buffer(0)]], device const {T}* b [[buffer(1)]], device {T}* out [[buffer(2)]],
                   constant uint& n [[buffer(3)]], uint i [[thread_position_in_grid]]) {{
  const {T} x = a[i], y = b[i];
  out[i] = x + y;
  out[n + i] = x - y;
  out[2 * n + i] = x * y;
  out[3 * n + i] = x / y;
  out[4 * n + i] = x * y + x;  // two roundings
  out[5 * n + i] = {T}(float(x) * float(y));
  {T} z = x;
  z += y;
  z *= x;
  out[6 * n + i] = z;
  out[7 * n + i] = -x;
}}
"""


def assert_same_bits(result: np.ndarray, expected: np.ndarray) -> None:
    """Equal bits; every NaN is as good as another."""
    nan = np.isnan(expected.astype(np.float32))
    assert np.array_equal(np.isnan(result.astype(np.float32)), nan)
    bits = f"u{result.dtype.itemsize}"
    different = (result.view(bits) != expected.view(bits)) & ~nan
    assert not different.any(), (result[different][:4], expected[different][:4])


@types
def test_arithmetic_of_any_bits(name: str) -> None:
    dtype = TYPES[name]
    a, b = random_bits(N, dtype, 1), random_bits(N, dtype, 2)
    out = np.zeros((8, N), dtype)
    metal(BINARY.format(T=name)).launch("binary", [a, b, Out(out), np.uint32(N)], grid=N // 256, group=256)
    with np.errstate(all="ignore"):
        single = (a.astype(np.float32) * b.astype(np.float32)).astype(dtype)
        expected = [a + b, a - b, a * b, a / b, a * b + a, single, (a + b) * a, -a]
    for result, reference in zip(out, expected, strict=True):
        assert_same_bits(result, reference)


def test_half_fma_rounds_once() -> None:
    text = """
    kernel void fused(device const half* a [[buffer(0)]], device const half* b [[buffer(1)]],
                      device const half* c [[buffer(2)]], device half* out [[buffer(3)]],
                      uint i [[thread_position_in_grid]]) { out[i] = fma(a[i], b[i], c[i]); }
    """
    a, b, c = (np.random.default_rng(s).standard_normal(N).astype(np.float16) for s in range(3))
    out = np.zeros(N, np.float16)
    metal(text).launch("fused", [a, b, c, Out(out)], grid=N // 256, group=256)
    # The product is exact in float64, and so is its sum with c at these exponents.
    assert_same_bits(out, (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(np.float16))


@types
def test_conversions(name: str) -> None:
    text = f"""
    kernel void convert(device const float* a [[buffer(0)]], device {name}* out [[buffer(1)]],
                        device float* back [[buffer(2)]], uint i [[thread_position_in_grid]]) {{
      out[i] = {name}(a[i]);
      back[i] = out[i];
    }}
    """
    a = random_bits(N, np.dtype(np.float32), 3)
    a[: N // 2] = np.random.default_rng(4).standard_normal(N // 2).astype(np.float32)
    out, back = np.zeros(N, TYPES[name]), np.zeros(N, np.float32)
    metal(text).launch("convert", [a, Out(out), Out(back)], grid=N // 256, group=256)
    with np.errstate(all="ignore"):
        expected = a.astype(TYPES[name])
    assert_same_bits(out, expected)
    assert_same_bits(back, expected.astype(np.float32))


@pytest.mark.parametrize(
    "statement",
    [
        "bfloat y = 1.5f;",
        "half h = 1.0h; bfloat y = h;",
        "float4 v = float4(1.0f, 2.0f);",
        "float3 v = float3(1.0f); float2 w = v;",
    ],
)
def test_what_msl_refuses_does_not_compile(statement: str) -> None:
    text = f"kernel void refused(device float* out [[buffer(0)]]) {{ {statement} out[0] = 1.0f; }}"
    with pytest.raises(CompileError, match="error:"):
        metal(text).launch("refused", [Out(np.zeros(1, np.float32))], grid=1, group=1)


def test_literals_are_float() -> None:
    text = """
    kernel void literals(device float* out [[buffer(0)]]) {
      out[0] = 0.1 + 0.2;
      out[1] = sizeof(1.0) + sizeof(1e3) + sizeof(0x1p-3);
      out[2] = 1.5h + 0.25bf;
      out[3] = 0xe + 1;
    }
    """
    out = np.zeros(4, np.float32)
    metal(text).launch("literals", [Out(out)], grid=1, group=1)
    assert out.tolist() == [np.float32(0.1) + np.float32(0.2), 12.0, 1.75, 15.0]


def test_vectors() -> None:
    text = """
    kernel void vectors(device float* out [[buffer(0)]]) {
      float4 v(1, 2, 3, 4);
      float4 w = v.wzyx * 10.0f;
      w.xy = v.zw;                      // 3 4 20 10
      v.rgb += w.xyz;                   // 4 6 23 4
      float2 pair = v.xy;
      pair = pair.yx;                   // 6 4
      float4 joined(pair, float2(7, 8));
      bool4 less = v < w;               // f f f t
      packed_float3 packed = v.xyz;
      half4 h = half4(v);
      int3 whole = int3(float3(1.9f, -1.9f, 0.5f));
      vec<float, 8> wide(1.0f);
      wide[7] = 5;
      out[0] = w.x; out[1] = w.z; out[2] = v.z; out[3] = pair.x;
      out[4] = joined.w; out[5] = any(less) + 2 * all(less) + 4 * less.w;
      out[6] = packed.y + sizeof(packed_float3) + sizeof(float3); out[7] = h.y;
      out[8] = whole.x * 10 + whole.y; out[9] = dot(v, w); out[10] = (wide + wide)[7];
      out[11] = select(v, w, less).w; out[12] = as_type<uint>(1.0f) == 0x3f800000u;
      out[13] = clamp(v, 5.0f, 20.0f).z; out[14] = (-v + v.y).x;
    }
    """
    out = np.zeros(15, np.float32)
    metal(text).launch("vectors", [Out(out)], grid=1, group=1)
    dot = 4 * 3 + 6 * 4 + 23 * 20 + 4 * 10
    assert out.tolist() == [3, 20, 23, 6, 8, 5, 6 + 12 + 16, 6, 9, dot, 10, 10, 1, 20, 2]


def test_alignment_of_vectors() -> None:
    text = """
    struct Mixed { half h; float3 v; uchar c; half4 q; packed_float3 p; };
    static_assert(sizeof(Mixed) == 64 && alignof(Mixed) == 16, "as on a GPU");
    static_assert(sizeof(half3) == 8 && sizeof(vec<bfloat, 4>) == 8 && alignof(char4) == 4, "as on a GPU");
    kernel void sizes(device float* out [[buffer(0)]]) { out[0] = sizeof(Mixed); }
    """
    out = np.zeros(1, np.float32)
    metal(text).launch("sizes", [Out(out)], grid=1, group=1)
    assert out[0] == 64


def test_integer_functions() -> None:
    text = """
    kernel void integers(device int* out [[buffer(0)]]) {
      out[0] = popcount(0xf0f0u); out[1] = clz(1u); out[2] = ctz(8u); out[3] = clz(ushort(1));
      out[4] = mulhi(0x80000000u, 4u); out[5] = extract_bits(-8, 2u, 4u); out[6] = extract_bits(0xabcdu, 4u, 8u);
      out[7] = insert_bits(0u, 5u, 4u, 4u); out[8] = rotate(0x80000001u, 1u); out[9] = abs(-7);
      out[10] = reverse_bits(1u) == 0x80000000u; out[11] = absdiff(3u, 10u); out[12] = int(char(200));
    }
    """
    out = np.zeros(13, np.int32)
    metal(text).launch("integers", [Out(out)], grid=1, group=1)
    assert out.tolist() == [8, 31, 3, 15, 2, -2, 0xBC, 0x50, 3, 7, 1, 7, -56]


def test_fast_functions_err_by_the_noise_asked_for() -> None:
    text = """
    kernel void noisy(device const float* a [[buffer(0)]], device float* fast [[buffer(1)]],
                      device float* precise [[buffer(2)]], uint i [[thread_position_in_grid]]) {
      fast[i] = fast::exp2(a[i]);
      precise[i] = precise::exp2(a[i]);
    }
    """
    a = np.linspace(-3, 3, 4096, dtype=np.float32)
    fast, precise = np.zeros_like(a), np.zeros_like(a)
    for ulps in (0.0, 4.0):
        metal(text).launch("noisy", [a, Out(fast), Out(precise)], grid=16, group=256, ulp_noise=ulps)
        distance = np.abs(fast.view(np.int32) - precise.view(np.int32))
        assert distance.max() == ulps
        assert np.array_equal(precise, np.exp2(a.astype(np.float64)).astype(np.float32))


def test_fast_tanh_has_its_trap() -> None:
    text = """
    kernel void trap(device float* out [[buffer(0)]]) {
      volatile float x = 30.0f;
      out[0] = fast::tanh(x);
      out[1] = precise::tanh(x);
    }
    """
    out = np.zeros(2, np.float32)
    metal(text).launch("trap", [Out(out)], grid=1, group=1)
    assert np.isnan(out[0])
    assert out[1] == 1
