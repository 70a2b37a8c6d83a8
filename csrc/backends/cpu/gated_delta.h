#pragma once

#include <array>
#include <cstdint>

#include "backends/cpu/element.h"

namespace tessl::cpu {

// Element (batch, token, head, column) is at the sum of index times stride; strides in elements.
struct TokensView {
  const void* data = nullptr;
  Element element = Element::float32;
  std::array<int64_t, 4> strides{};

  explicit operator bool() const {
    return data != nullptr;
  }
};

// The tokens [starts, lengths) of each row, clipped to 0..T; null is all of them.
struct TokenRange {
  const int32_t* starts = nullptr;
  int64_t starts_stride = 0;
  const int32_t* lengths = nullptr;
  int64_t lengths_stride = 0;
};

// The gated delta rule over q, k [B, T, Hk, Dk], v [B, T, Hv, Dv], g, beta [B, T, Hv], with a state S^T [Dv, Dk] of
// each value head:
//   S = exp(g) S    u = beta (v - S^T k)    S = S + k u^T    y = S^T q
// With `A_log` and `dt_bias` [Hv], g and beta are a and b: g = -exp(A_log) softplus(a + dt_bias), beta = sigmoid(b).
struct GatedDelta {
  int64_t B, T, Hk, Hv, Dk, Dv;
  TokensView q, k, v, g, beta;
  const float* A_log = nullptr;
  int64_t A_log_stride = 0;
  const float* dt_bias = nullptr;
  int64_t dt_bias_stride = 0;
  TokensView state{}; // float32 [B, Hv, Dv, Dk]; absent is zeros
  TokenRange range;
  bool normalize_qk;
  void* y;            // [B, T, Hv, Dv] row-contiguous, of q's element
  float* final_state; // [B, Hv, Dv, Dk] row-contiguous; may be the state's memory
};

void gated_delta(const GatedDelta& problem);

// Gradients, float32 and row-contiguous, from those of the results. `forward` has g and beta, and no results.
struct GatedDeltaGradient {
  GatedDelta forward;
  TokensView dy;
  TokensView dfinal_state; // float32 [B, Hv, Dv, Dk]
  float* dq;
  float* dk;
  float* dv;
  float* dg;
  float* dbeta;
  float* dstate;
};

void gated_delta_gradient(const GatedDeltaGradient& problem);

} // namespace tessl::cpu
