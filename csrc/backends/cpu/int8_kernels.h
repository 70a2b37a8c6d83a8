#pragma once

#include <cstdint>

namespace tessl::cpu {

// Some int8 that follow each other in k, the first in the lowest bits: `group` of them, as what the instruction for
// their products takes. Of b they are as they are; of a, where that instruction takes unsigned bytes, 128 more.
using Int8Group = int32_t;

// What depends on the instruction set in products of int8: exact sums in int32, a group a lane and instruction where
// there is one for it. Strides are in elements. A last group that is not full is filled with zeros.
struct Int8Kernels {
  // Columns of one strip of b, and int8 of a group.
  int64_t strip, group;

  // target[i * ld_target + g] = group g of line i of a.
  void (*pack_rows)(
      Int8Group* target,
      int64_t ld_target,
      const int8_t* source,
      int64_t line_stride,
      int64_t k_stride,
      int64_t lines,
      int64_t depth
  );

  // Strips [column / strip][1 + group][strip] of columns of b; zeros past the last column. The first of each column is
  // what its sums start from: it takes back what a has too much.
  void (*pack_strips)(
      Int8Group* target, const int8_t* source, int64_t k_stride, int64_t column_stride, int64_t columns, int64_t depth
  );

  // sums[m, n] = sum_k a[m, k] b[k, n] for the columns of the strips, added to what is there to `accumulate`; whole
  // strips of sums are written.
  void (*multiply)(
      int32_t* sums,
      int64_t ld_sums,
      const Int8Group* a,
      int64_t lda,
      const Int8Group* strips,
      int64_t M,
      int64_t columns,
      int64_t groups,
      bool accumulate
  );

  // The same of operands where they are, both with their elements side by side in k: for few rows, which are not worth
  // packing b.
  void (*multiply_in_place)(
      int32_t* sums,
      int64_t ld_sums,
      const int8_t* a,
      int64_t row_stride,
      const int8_t* b,
      int64_t column_stride,
      int64_t M,
      int64_t columns,
      int64_t depth,
      bool accumulate
  );
};

// The kernels for this CPU: those of vector_kernels()'s instruction set, with AVX-512 VNNI where the CPU has that too
// and MLX_TESSL_CPU_ISA does not ask for avx512 alone.
const Int8Kernels& int8_kernels();

} // namespace tessl::cpu
