#pragma once

// Functions of float32, branch-free. Bounds are in ulps of the exact value, denormals included; tests/backends/
// test_cpu_math.py holds them. Outside the reals they are what the formula gives: NaN for NaN, and NaN for -infinity
// times 0.

#include "backends/cpu/vectors.h"

namespace tessl::cpu::TESSL_CPU_ISA {

// fraction * scale * scale_again: exp of any argument, which as one float may already be denormal or overflow.
struct ScaledExp {
  Floats fraction; // in [0.7, 1.42]
  Floats scale;
  Floats scale_again;
};

TESSL_INLINE Floats power_of_two(Ints n) {
  return (Floats)((n + 127) << 23);
}

// exp(x + correction), |correction| < 0.1. x = n ln 2 + r, |r| <= ln 2 / 2; e^r by a polynomial with relative error
// 3.1e-9 (weighted least squares, reweighted to minimax). Beyond [-110, 90] the value is that of the nearest end.
TESSL_INLINE ScaledExp scaled_exp(Floats x, Floats correction) {
  constexpr float round_to_integer = 0x1.8p23f;
  x = x < -110.0f ? splat(-110.0f) : x;
  x = x > 90.0f ? splat(90.0f) : x;
  const Floats shifted = x * 0x1.715476p+0f + round_to_integer;
  const Ints n = (Ints)shifted - (Ints)splat(round_to_integer);
  const Floats turns = shifted - round_to_integer;
  // ln 2 in two parts, the first short enough that its multiples are exact.
  const Floats r = ((x - turns * 0x1.62e4p-1f) - turns * 0x1.7f7d1cp-20f) + correction;
  Floats p = splat(0.00138142903f);
  p = p * r + 0.00836883672f;
  p = p * r + 0.0416684002f;
  p = p * r + 0.166665196f;
  p = p * r + 0.49999994f;
  const Ints half = n >> 1;
  return {1.0f + (r + r * r * p), power_of_two(half), power_of_two(n - half)};
}

TESSL_INLINE Floats relu(Floats x) {
  return x < 0.0f ? Floats{} : x;
}

// x sigmoid(z) for x and z of one sign, where sigmoid(z) = e^z / (1 + e^z) below 0. `least` is below 0, and at and
// beyond it the result has vanished: it stands in for such x, so that nothing large multiplies what is left of e^z.
TESSL_INLINE Floats times_sigmoid(Floats x, Floats z, float least) {
  const ScaledExp e = scaled_exp(-magnitude(z), Floats{});
  const Floats denominator = 1.0f + e.fraction * e.scale * e.scale_again;
  const Floats bounded = x < least ? splat(least) : x;
  const Floats below = bounded * e.fraction / denominator * e.scale * e.scale_again;
  const Floats value = x < 0.0f ? below : x / denominator;
  return x < -__FLT_MAX__ ? splat(__builtin_nanf("")) : value;
}

// x / (1 + e^-x).
TESSL_INLINE Floats silu(Floats x) {
  return times_sigmoid(x, x, -110.0f);
}

// x (1 + tanh u) / 2 = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3).
TESSL_INLINE Floats gelu_tanh(Floats x) {
  const Floats twice_u = x * (1.59576912f + 0.0713548163f * (x * x));
  return times_sigmoid(x, twice_u, -15.0f);
}

// x Phi(x), by the upper tail Q(a) = Phi(-a) of the normal distribution: it keeps its relative accuracy for every a.
// Q(a) e^(a^2 / 2) is smooth and positive: a polynomial in t = 1 / (1 + 0.3 a), relative error 3.5e-9 on [0, 15]
// (fitted as above). a^2 / 2 is taken as h^2 / 2, exact for h the leading 12 bits of a, and the rest.
TESSL_INLINE Floats gelu(Floats x) {
  constexpr float vanished = 15.0f;
  Floats a = magnitude(x);
  a = a > vanished ? splat(vanished) : a;
  const Floats h = (Floats)((Words)a & 0xfffff000u);
  const ScaledExp e = scaled_exp(h * h * -0.5f, (a - h) * (a + h) * -0.5f);
  const Floats t = 1.0f / (1.0f + 0.3f * a);
  Floats p = splat(-0.0206282716f);
  p = p * t + 0.112462789f;
  p = p * t - 0.228280351f;
  p = p * t + 0.191877738f;
  p = p * t - 0.0795048252f;
  p = p * t + 0.096202746f;
  p = p * t + 0.0783729255f;
  p = p * t + 0.110239208f;
  p = p * t + 0.119571336f;
  p = p * t + 0.119686715f;
  const Floats tail = p * t * e.fraction;
  const Floats bounded = x < -vanished ? splat(-vanished) : x;
  const Floats below = bounded * tail * e.scale * e.scale_again;
  const Floats value = x < 0.0f ? below : x - x * (tail * e.scale * e.scale_again);
  return x < -__FLT_MAX__ ? splat(__builtin_nanf("")) : value;
}

} // namespace tessl::cpu::TESSL_CPU_ISA
