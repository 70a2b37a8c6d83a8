#pragma once

#include <cstdint>
#include <span>

#include <mlx/dtype.h>

#include "backends/cpu/matmul.h"
#include "backends/cpu/packed_rows.h"

namespace tessl::cpu {

// out = activation(x W + bias), out [M, N] row-contiguous: W is the weights [K, N], or their transpose [N, K]. All but
// the packed weights is of `dtype`: float32, float16 or bfloat16; all arithmetic is float32.
struct QuantizedMatmul {
  mlx::core::Dtype dtype;
  int64_t M, N, K;
  MatrixView x;
  PackedMatrix w;
  bool transposed;
  MatrixView bias; // null when absent
  MatmulActivation activation;
  void* out;
};

// Computes independent products, all of them split over the thread pool.
void quantized_matmul(std::span<const QuantizedMatmul> products);

} // namespace tessl::cpu
