#pragma once

#include <cstdint>

#include "kernels/args/sparse_max_pool.h"

namespace tessl::cpu {

// At most so many tokens at once in pool_tokens: as many as leave their sums in registers.
constexpr int max_pooled_tokens = 6;

// What depends on the instruction set in sparse_max_pool. Words come in panels of `panel_words`, their weights
// interleaved: panel[unit * panel_words + word]. All is float32.
struct SparseKernels {
  int64_t panel_words;

  // pooled[word] = the maximum of it and the logits of `count` tokens, 1 to max_pooled_tokens; a NaN stays. With
  // `sums` = it plus f(logit + bias[word]) of each token in order. A logit is a sum over units in ascending order.
  void (*pool_tokens)(
      float* pooled,
      const float* tokens,
      int64_t token_stride,
      int64_t count,
      const float* panel,
      int64_t units,
      const float* bias,
      SparseActivation activation,
      bool sums
  );

  // out[i] = f(x[i] + bias[i]); count is a multiple of panel_words.
  void (*activate)(float* out, const float* x, const float* bias, SparseActivation activation, int64_t count);
};

// The kernels for this CPU: those of vector_kernels()'s instruction set.
const SparseKernels& sparse_kernels();

} // namespace tessl::cpu
