#pragma once

#include <cstdint>

namespace tessl::cpu {

// Two int8 that follow each other in k, widened to int16: the low half is the first.
using Int8Pair = int32_t;

// What depends on the instruction set in products of int8: exact sums in int32, two products a lane and instruction
// where there is one for it. Strides are in elements.
struct Int8Kernels {
  // Columns of one strip of b.
  int64_t strip;

  // target[i * ld_target + p] = the pair of source[i, 2p] and source[i, 2p + 1], for i < lines; of an odd count of k
  // the last is zero.
  void (*pack_rows)(
      Int8Pair* target,
      int64_t ld_target,
      const int8_t* source,
      int64_t line_stride,
      int64_t k_stride,
      int64_t lines,
      int64_t depth
  );

  // Strips [column / strip][pair][strip] of columns of b; zeros past the last column and for the last of an odd count.
  void (*pack_strips)(
      Int8Pair* target, const int8_t* source, int64_t k_stride, int64_t column_stride, int64_t columns, int64_t depth
  );

  // sums[m, n] += sum_p a[m, p] . b[p, n] for the columns of the strips; ld_sums is a multiple of `strip`.
  void (*multiply)(
      int32_t* sums,
      int64_t ld_sums,
      const Int8Pair* a,
      int64_t lda,
      const Int8Pair* strips,
      int64_t M,
      int64_t columns,
      int64_t pairs
  );
};

// The kernels for this CPU: those of vector_kernels()'s instruction set.
const Int8Kernels& int8_kernels();

} // namespace tessl::cpu
