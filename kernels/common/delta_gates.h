#pragma once

#include <metal_stdlib>

#include "kernels/args/gated_delta.h"
#include "kernels/common/activation.h"

constant bool delta_has_gates [[function_constant(2)]];     // a and b, A_log and dt_bias in place of g and beta
constant bool delta_has_log_decay [[function_constant(5)]]; // its opposite

constant bool delta_has_state [[function_constant(3)]];
constant bool delta_normalizes [[function_constant(4)]];

constant constexpr float delta_norm_eps = 1e-6f;

inline int64_t delta_offset(constant int64_t* strides, uint batch, int token, int head) {
  return int64_t(batch) * strides[0] + token * strides[1] + head * strides[2];
}

// log(1 + e^x): max(x, 0) + log1p(e^-|x|), and log1p(e) = 2 atanh(z) with z = e / (2 + e) <= 1 / 3, by its series. No
// digit is lost where e is small, whatever a compiler makes of 1 + e.
inline float softplus(float x) {
  const float e = metal::precise::exp(-metal::fabs(x));
  const float z = e / (2.0f + e);
  const float square = z * z;
  float p = 1.0f / 15.0f;
  p = metal::fma(p, square, 1.0f / 13.0f);
  p = metal::fma(p, square, 1.0f / 11.0f);
  p = metal::fma(p, square, 1.0f / 9.0f);
  p = metal::fma(p, square, 1.0f / 7.0f);
  p = metal::fma(p, square, 1.0f / 5.0f);
  p = metal::fma(p, square, 1.0f / 3.0f);
  return metal::max(x, 0.0f) + 2.0f * metal::fma(p * square, z, z);
}

// The decay e^g and the strength beta of a token, from g and beta, or from a and b.
inline float2 delta_gate(float g, float beta, float A_log, float dt_bias) {
  if (!delta_has_gates) {
    return float2(metal::precise::exp(g), beta);
  }
  return float2(metal::precise::exp(-metal::precise::exp(A_log) * softplus(g + dt_bias)), sigmoid(beta));
}

// The gate of a token whose g and beta, or a and b, are in memory.
template <typename T>
inline float2 gate_at(
    device const T* g,
    device const T* beta,
    float A_log,
    float dt_bias,
    constant GatedDeltaArgs& args,
    uint batch,
    int token,
    int head
) {
  const int64_t g_place = delta_offset(args.g_strides, batch, token, head);
  const int64_t beta_place = delta_offset(args.beta_strides, batch, token, head);
  return delta_gate(float(g[g_place]), float(beta[beta_place]), A_log, dt_bias);
}
