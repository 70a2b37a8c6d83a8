#pragma once

#include <metal_stdlib>

// Activations in float32. A NaN goes in and comes out.

inline float relu(float x) {
  return x < 0.0f ? 0.0f : x;
}

// log(1 + x) for x >= 0: log(u) x / (u - 1), u the rounded 1 + x, in which the errors of both factors cancel (Kahan).
inline float log_one_plus(float x) {
  const float u = 1.0f + x;
  return u == 1.0f || metal::isinf(u) ? x : metal::precise::log(u) * (x / (u - 1.0f));
}

// 1 / (1 + exp(-x)), by exp of a negative number: it cannot overflow.
inline float sigmoid(float x) {
  const float e = metal::precise::exp(-metal::fabs(x));
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

inline float silu(float x) {
  return x * sigmoid(x);
}

// The upper tail of the normal distribution, 1 - Phi(y) for y >= 0, as exp(-y^2 / 2) P(t) / (y + 2) with
// t = (y - 2) / (y + 2). Metal has no erf. P is a weighted least-squares fit over Chebyshev nodes of t: in float32 the
// tail is within 1e-7 of the exact one, and within 1.2e-6 of it relatively up to y = 6.
inline float normal_tail(float y) {
  const float r = 1.0f / (y + 2.0f);
  const float t = (y - 2.0f) * r;
  float p = 1.2411673378665e-4f;
  p = metal::fma(p, t, 6.3286535441875e-4f);
  p = metal::fma(p, t, 7.6300936052576e-4f);
  p = metal::fma(p, t, -1.8521909369155e-3f);
  p = metal::fma(p, t, -6.6986889578402e-3f);
  p = metal::fma(p, t, -4.9033341929316e-4f);
  p = metal::fma(p, t, 3.6713019013404e-2f);
  p = metal::fma(p, t, 2.8798963874578e-2f);
  p = metal::fma(p, t, -3.3140417933464e-1f);
  p = metal::fma(p, t, 6.7240798473358e-1f);
  return metal::precise::exp(-0.5f * y * y) * (p * r);
}

// x Phi(x). Beyond 16 the tail is zero in float32, and infinity stays out of t.
inline float gelu(float x) {
  const float tail = normal_tail(metal::min(metal::fabs(x), 16.0f));
  return x * (x < 0.0f ? tail : 1.0f - tail);
}

// x / 2 (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3): Hendrycks and Gimpel, arXiv 1606.08415.
inline float gelu_tanh(float x) {
  return x * sigmoid(1.5957691216057308f * (x + 0.044715f * x * x * x));
}
