#pragma once

#include <cstdint>
#include <span>

#include <mlx/dtype.h>

#include "backends/cpu/matmul.h"

namespace tessl::cpu {

// a b of int8, out [M, N] row-contiguous: exact when `out_dtype` is int32; else
// activation(a b scale_a scale_b + bias), float32 arithmetic on the exact sum and one rounding to float32, float16 or
// bfloat16. Scales and bias are float32, null when absent. No sum may leave int32.
struct Int8Matmul {
  mlx::core::Dtype out_dtype;
  int64_t M, N, K;
  MatrixView a, b;
  MatrixView scale_a, scale_b, bias;
  MatmulActivation activation;
  void* out;
};

// Whether oneDNN computes a product: a large one, where it is used for such at all. No other opens it. An op asks
// before its task does: see onednn_use.
bool goes_through_onednn(const Int8Matmul& product);

// Computes independent products, all of them split over the thread pool.
void int8_matmul(std::span<const Int8Matmul> products);

} // namespace tessl::cpu
