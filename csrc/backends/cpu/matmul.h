#pragma once

#include <array>
#include <cstdint>
#include <span>

#include <mlx/dtype.h>

#include "kernels/args/matmul.h"

namespace tessl::cpu {

// Element (row, column) is at data[row * strides[0] + column * strides[1]]; strides in elements, 0 broadcasts.
struct MatrixView {
  const void* data = nullptr;
  std::array<int64_t, 2> strides{};

  explicit operator bool() const {
    return data != nullptr;
  }
};

// out = activation(alpha a b + beta c + bias) + residual, out [M, N] row-contiguous; null addends are absent.
// Every pointer is to elements of `dtype`: float32, float16 or bfloat16; all arithmetic is float32.
// beta = 0 never reads c; K = 0 is a sum of nothing.
struct Matmul {
  mlx::core::Dtype dtype;
  int64_t M, N, K;
  MatrixView a, b;
  MatrixView c, bias, residual;
  float alpha, beta;
  MatmulActivation activation;
  bool batch_invariant; // a row's bits do not depend on M nor on its place
  void* out;
};

// Computes independent products, all of them split over the thread pool.
void matmul(std::span<const Matmul> products);

} // namespace tessl::cpu
