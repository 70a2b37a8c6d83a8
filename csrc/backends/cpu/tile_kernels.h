#pragma once

#include <cstdint>

#include "backends/cpu/element.h"

namespace tessl::cpu {

// Products of rows of a and panels of b. A panel holds rows of a matrix side by side, k after k: element (row, k) is at
// panel[k * width + row]. A tile is what `rows` rows of a and one panel make, with all its sums in registers.
struct TileKernels {
  int64_t rows, columns; // of a tile; `columns` is the width of a panel

  // `count` <= width rows of K elements as a panel of float32. The width is a multiple of `columns`; what stands in
  // place of rows that are missing means nothing.
  void (*pack)(
      Element element,
      float* panel,
      int64_t width,
      const void* source,
      int64_t row_stride,
      int64_t k_stride,
      int64_t count,
      int64_t K
  );

  // sums[m, n] = sum_k a[m * ld_a + k] b[k, n], or += it, for m < M <= rows and n < N <= columns. A sum is made in the
  // order of k, whatever M and N.
  void (*multiply)(
      float* sums,
      int64_t ld_sums,
      const float* a,
      int64_t ld_a,
      const float* b,
      int64_t M,
      int64_t N,
      int64_t K,
      bool accumulate
  );
};

// The kernels for this CPU: those of vector_kernels()'s instruction set.
const TileKernels& tile_kernels();

} // namespace tessl::cpu
