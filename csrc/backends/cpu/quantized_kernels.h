#pragma once

#include <cstdint>

#include "launch/quantization.h"

namespace tessl::cpu {

// One row of packed values, and a float32 scale (and bias, when affine) for each group of it.
struct PackedRow {
  const uint32_t* words = nullptr;
  const float* scales = nullptr;
  const float* biases = nullptr;
  int64_t values = 0;
};

// At most so many rows of `a` at once in dot_packed.
constexpr int max_packed_dot_rows = 4;

// What depends on the instruction set in products with packed weights. A weight is scale * value + bias, in float32.
struct QuantizedKernels {
  // target[i] = weight of value begin + i, for i < count; begin and count are multiples of 16.
  void (*dequantize)(
      const Quantization& quantization, float* target, const PackedRow& row, int64_t begin, int64_t count
  );

  // sums[m * ld_sums] = sum_k a[m, k] weight[k] over the whole row, M <= max_packed_dot_rows.
  void (*dot_packed)(
      const Quantization& quantization,
      float* sums,
      int64_t ld_sums,
      const float* a,
      int64_t lda,
      const PackedRow& row,
      int64_t M
  );
};

// The kernels for this CPU: those of vector_kernels()'s instruction set.
const QuantizedKernels& quantized_kernels();

} // namespace tessl::cpu
