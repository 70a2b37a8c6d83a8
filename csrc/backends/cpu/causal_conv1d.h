#pragma once

#include <array>
#include <cstdint>

#include "backends/cpu/element.h"
#include "backends/cpu/gated_delta.h"

namespace tessl::cpu {

// y_t = activation(sum_j weight[c, j] x_{t - K + 1 + j, c}) over x [B, T, C], weight [C, K]; before a row's first token
// stand the K - 1 rows of its state. All operands are of `element`; absent state is zeros.
struct CausalConv1d {
  Element element;
  int64_t B, T, C, K;
  const void* x;
  std::array<int64_t, 3> x_strides; // batch, token, channel; in elements
  const void* weight;
  std::array<int64_t, 2> weight_strides;
  const void* state; // [B, K - 1, C] or null
  std::array<int64_t, 3> state_strides;
  TokenRange range;
  bool with_silu;
  void* y;         // [B, T, C] row-contiguous
  void* new_state; // [B, K - 1, C] row-contiguous: the last K - 1 rows
};

void causal_conv1d(const CausalConv1d& problem);

} // namespace tessl::cpu
