#pragma once

#include <array>
#include <cstdint>

#include "backends/cpu/element.h"
#include "kernels/args/sparse_max_pool.h"

namespace tessl::cpu {

// out [rows, words]: f(hidden[row, token] . weight[word] + bias[word]), pooled over a row's tokens; out is
// row-contiguous. Null lengths are all `tokens`; null bias is none. Strides in elements.
struct SparseMaxPool {
  Element element;
  int64_t rows, tokens, units, words;
  const void* hidden;
  std::array<int64_t, 3> hidden_strides;
  const void* weight;
  std::array<int64_t, 2> weight_strides;
  const void* bias;
  int64_t bias_stride;
  const int32_t* lengths;
  int64_t length_stride;
  SparseActivation activation;
  bool sums;
  void* out;
};

void sparse_max_pool(const SparseMaxPool& work);

} // namespace tessl::cpu
