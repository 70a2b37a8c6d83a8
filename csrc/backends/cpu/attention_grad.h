#pragma once

#include "backends/cpu/attention.h"

namespace tessl::cpu {

// The gradients of `forward` by its operands. Outputs are row-contiguous, and null where they are not wanted: dk and dv
// together or not at all, dprefix_k and dprefix_v too. See ops/attention_problem.h.
struct AttentionGrad {
  Attention forward;         // its outputs are not written
  HeadsView out, ends, dout; // ends are float32
  void* dq = nullptr;
  void* dk = nullptr;
  void* dv = nullptr;
  void* dprefix_k = nullptr;
  void* dprefix_v = nullptr;
  float* dsinks = nullptr;
  void* dmask = nullptr; // of an additive mask, summed to mask_shape
  std::array<int64_t, 4> mask_shape{1, 1, 1, 1};
};

void attention_grad(const AttentionGrad& problem);

} // namespace tessl::cpu
