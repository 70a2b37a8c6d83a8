#pragma once

#include <cstdint>

#include "backends/cpu/element.h"
#include "backends/cpu/row_kernels.h"
#include "kernels/args/matmul.h"

namespace tessl::cpu {

// Elements of one row: element i is at data[i * stride]. Null data is an absent addend.
struct RowView {
  const void* data = nullptr;
  int64_t stride = 0;
};

// One row of activation(alpha sums + beta c + bias) + residual.
struct EpilogueRow {
  float alpha = 1.0f;
  float beta = 0.0f;
  MatmulActivation activation = MATMUL_ACTIVATION_NONE;
  RowView c, bias, residual;
};

// At most so many rows of `a` at once in the kernels that stream `b`.
constexpr int max_thin_rows = 4;

// What depends on the instruction set. Strides and leading dimensions are in elements; unless said otherwise pointers
// are to elements of `element`.
struct VectorKernels {
  const char* instruction_set;

  // target[i] = source[i * stride] as float32.
  void (*load)(Element element, float* target, const void* source, int64_t stride, int64_t count);

  // out[i] = the epilogue of sums[i], rounded once; `out` may be `sums`.
  void (*finish)(Element element, void* out, const float* sums, const EpilogueRow& row, int64_t count);

  // sums[m, n] = sum_k a[m, k] b[n, k]: both contiguous in k, `a` and `sums` float32, M <= max_thin_rows.
  void (*dot_rows)(
      Element element,
      float* sums,
      int64_t ld_sums,
      const float* a,
      int64_t lda,
      const void* b,
      int64_t ldb,
      int64_t M,
      int64_t N,
      int64_t K
  );

  // sums[m, n] = sum_k a[m, k] b[k, n]: `b` contiguous in n; the rest as in dot_rows.
  void (*combine_rows)(
      Element element,
      float* sums,
      int64_t ld_sums,
      const float* a,
      int64_t lda,
      const void* b,
      int64_t ldb,
      int64_t M,
      int64_t N,
      int64_t K
  );

  // row[i] = exp(scale row[i] - max over the row of the same), for float32; returns their sum. count >= 1.
  float (*exponentials)(float* row, float scale, int64_t count);

  const RowKernels* rows;
};

// The kernels for this CPU. MLX_TESSL_CPU_ISA = baseline | avx2 | avx512 takes lesser ones, for tests: throws
// std::invalid_argument when this CPU or this build has them not.
const VectorKernels& vector_kernels();

} // namespace tessl::cpu
