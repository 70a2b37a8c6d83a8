#pragma once

// Functions of float32, branch-free. Bounds are in ulps of the exact value and held by tests/backends/test_cpu_math.py.
// Outside the reals they are what the formula gives: NaN for NaN, and for -infinity times 0.

#include "backends/cpu/vectors.h"

namespace tessl::cpu::TESSL_CPU_ISA {

// Below this e^x would soon be denormal, and what is made of it is 0.
constexpr float least_exponent = -87.0f;

// e^r for |r| <= ln 2 / 2, by a polynomial with relative error 3.1e-9 (minimax by reweighted least squares).
TESSL_INLINE Floats exp_near_zero(Floats r) {
  Floats p = splat(0.00138142903f);
  p = p * r + 0.00836883672f;
  p = p * r + 0.0416684002f;
  p = p * r + 0.166665196f;
  p = p * r + 0.49999994f;
  return 1.0f + (r + r * r * p);
}

// 2^n for -127 < n < 128, and 0 for -127.
TESSL_INLINE Floats power_of_two(Ints n) {
  return (Floats)((n + 127) << 23);
}

// exp(x + correction) for least_exponent <= x <= 0 and |correction| < 0.1. 1.1 ulp.
// x = n ln 2 + r, |r| <= ln 2 / 2.
TESSL_INLINE Floats exp_in_range(Floats x, Floats correction) {
  constexpr float round_to_integer = 0x1.8p23f;
  const Floats shifted = x * 0x1.715476p+0f + round_to_integer;
  const Ints n = (Ints)shifted - (Ints)splat(round_to_integer);
  const Floats turns = shifted - round_to_integer;
  // ln 2 in two parts, the first short enough that its multiples are exact.
  const Floats r = ((x - turns * 0x1.62e4p-1f) - turns * 0x1.7f7d1cp-20f) + correction;
  return exp_near_zero(r) * power_of_two(n);
}

// exp(x) for x <= 0, and 0 below least_exponent. 1.1 ulp.
TESSL_INLINE Floats exp_of_negative(Floats x) {
  const Floats bounded = x < least_exponent ? splat(least_exponent) : x;
  return x < least_exponent ? Floats{} : exp_in_range(bounded, Floats{});
}

// 2^x for x <= 0 (or a little above, by rounding), and 0 below -126.5. 1.1 ulp (seen over every 97th float: 1.0).
TESSL_INLINE Floats exp2_of_negative(Floats x) {
  constexpr float least = -127.0f; // where the power of two is 0
  constexpr float round_to_integer = 0x1.8p23f;
  const Floats bounded = x < least ? splat(least) : x;
  const Floats shifted = bounded + round_to_integer;
  const Ints n = (Ints)shifted - (Ints)splat(round_to_integer);
  const Floats r = (bounded - (shifted - round_to_integer)) * 0x1.62e430p-1f;
  return exp_near_zero(r) * power_of_two(n);
}

// 2 ulp (seen over every 97th float: 1.5). (1 - e) / (1 + e) with e = exp(-2 |x|); near 0 a polynomial (Moshier,
// Cephes, 1984).
TESSL_INLINE Floats tanh(Floats x) {
  const Floats size = magnitude(x);
  const Floats e = exp_of_negative(-2.0f * size);
  const Floats far = (1.0f - e) / (1.0f + e);
  const Floats square = x * x;
  Floats p = splat(-5.70498872745e-3f);
  p = p * square + 2.06390887954e-2f;
  p = p * square - 5.37397155531e-2f;
  p = p * square + 1.33314422036e-1f;
  p = p * square - 3.33332819422e-1f;
  const Floats near = size + size * square * p;
  const Floats y = size < 0.625f ? near : far;
  return x < 0.0f ? -y : y;
}

TESSL_INLINE Floats relu(Floats x) {
  return x < 0.0f ? Floats{} : x;
}

// x sigmoid(z) for x and z of one sign: sigmoid(z) = 1 / (1 + e^-z), or e^z / (1 + e^z).
TESSL_INLINE Floats times_sigmoid(Floats x, Floats z) {
  const Floats e = exp_of_negative(-magnitude(z));
  const Floats numerator = x < 0.0f ? e : splat(1.0f);
  return x * numerator / (1.0f + e);
}

// x / (1 + e^-x), 0 below -87. 4 ulp.
TESSL_INLINE Floats silu(Floats x) {
  return times_sigmoid(x, x);
}

// x (1 + tanh u) / 2 = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3), 0 where 2 u < -87. 4 + 3 |2 u| ulp for
// x < 0, by the rounding of 2 u.
TESSL_INLINE Floats gelu_tanh(Floats x) {
  return times_sigmoid(x, x * (1.59576912f + 0.0713548163f * (x * x)));
}

// x Phi(x), 0 below -13.19. 10 ulp: by the upper tail Q(a) = Phi(-a) of the normal distribution, which keeps its
// relative accuracy for every a. Q(a) e^(a^2 / 2) is smooth and positive: a polynomial in t = 1 / (1 + 0.3 a) with
// relative error 3.5e-9 (fitted as above). a^2 / 2 is h^2 / 2, exact for h the leading 12 bits of a, and a correction.
TESSL_INLINE Floats gelu(Floats x) {
  constexpr float vanished = 13.19f; // a^2 / 2 < 87
  const Floats size = magnitude(x);
  const Floats a = size > vanished ? splat(vanished) : size;
  const Floats h = (Floats)((Words)a & 0xfffff000u);
  const Floats e = size > vanished ? Floats{} : exp_in_range(h * h * -0.5f, (a - h) * (a + h) * -0.5f);
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
  const Floats tail = p * t * e;
  return x * (x < 0.0f ? tail : 1.0f - tail);
}

// log(1 + x) for x >= 0; infinity and NaN come back. 2 ulp.
// log(u) + c / u with u the rounded 1 + x and c what the rounding lost. u = 2^n m with m in [sqrt(1/2), sqrt(2)); the
// polynomial of log(m) is that of Moshier, Cephes (1984).
TESSL_INLINE Floats log1p_of_positive(Floats x) {
  const Floats u = 1.0f + x;
  const Floats lost = x < 1.0f ? x - (u - 1.0f) : 1.0f - (u - x);
  const Ints exponent = ((Ints)u - 0x3f3504f3) >> 23;
  const Floats n = __builtin_convertvector(exponent, Floats);
  const Floats f = (Floats)((Ints)u - (exponent << 23)) - 1.0f;
  const Floats square = f * f;
  Floats p = splat(7.0376836292e-2f);
  p = p * f - 1.1514610310e-1f;
  p = p * f + 1.1676998740e-1f;
  p = p * f - 1.2420140846e-1f;
  p = p * f + 1.4249322787e-1f;
  p = p * f - 1.6668057665e-1f;
  p = p * f + 2.0000714765e-1f;
  p = p * f - 2.4999993993e-1f;
  p = p * f + 3.3333331174e-1f;
  // ln 2 in two parts, the first short enough that its multiples are exact.
  const Floats low = p * f * square + (n * -2.12194440e-4f - 0.5f * square) + lost / u;
  const Floats log = (f + low) + n * 0.693359375f;
  return x < __builtin_inff() ? log : x;
}

// Cosine and sine of one angle.
struct Turn {
  Floats cosine;
  Floats sine;
};

// 2 ulp of 1 for |x| < 2^24: x = n pi / 2 + r, |r| <= pi / 4, the remainder taken in double precision, where n pi / 2
// errs by less than 2^-28 for all such x. Polynomials on [-pi / 4, pi / 4]: Moshier, Cephes (1984).
TESSL_INLINE Turn cosine_and_sine(Floats x) {
  constexpr double round_to_integer = 0x1.8p52;
  const Doubles wide = __builtin_convertvector(x, Doubles);
  const Doubles shifted = wide * 0x1.45f306dc9c883p-1 + round_to_integer;
  const Ints n = __builtin_convertvector((Longs)shifted, Ints); // the low bits of the mantissa
  const Doubles turns = shifted - round_to_integer;
  const Floats r =
      __builtin_convertvector((wide - turns * 0x1.921fb54442d18p+0) - turns * 0x1.1a62633145c07p-54, Floats);
  const Floats square = r * r;
  Floats p = splat(-1.9515295891e-4f);
  p = p * square + 8.3321608736e-3f;
  p = p * square - 1.6666654611e-1f;
  const Floats sine = r + r * square * p;
  Floats q = splat(2.443315711809948e-5f);
  q = q * square - 1.388731625493765e-3f;
  q = q * square + 4.166664568298827e-2f;
  const Floats cosine = 1.0f - 0.5f * square + square * square * q;
  const Floats first = (n & 1) == 0 ? cosine : sine;
  const Floats second = (n & 1) == 0 ? sine : cosine;
  return {((n + 1) & 2) == 0 ? first : -first, (n & 2) == 0 ? second : -second};
}

} // namespace tessl::cpu::TESSL_CPU_ISA
