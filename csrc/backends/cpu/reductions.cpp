#include "backends/cpu/reductions.h"

#include <cmath>

namespace tessl::cpu {
namespace {

// The one value of a row, for a reduction that gives one.
float reduce(Reduction reduction, const float* x, int64_t N) {
  const RowKernels& kernels = *vector_kernels().rows;
  if (reduction == REDUCTION_SUM) {
    return kernels.sum(x, N);
  }
  const float most = kernels.max(x, N);
  return reduction == REDUCTION_MAX ? most : most + std::log(kernels.exponentials(nullptr, x, most, N));
}

void scale(const RowReduction& work, float* out, const float* x, int64_t N) {
  const RowKernels& kernels = *vector_kernels().rows;
  if (work.reduction == REDUCTION_SOFTMAX) {
    const float sum = kernels.exponentials(out, x, kernels.max(x, N), N);
    kernels.scale(out, 1.0f / sum, out, N);
  } else {
    const float norm = std::sqrt(kernels.sum_of_squares(x, N));
    kernels.scale(out, 1.0f / (norm < work.eps ? work.eps : norm), x, N);
  }
}

void reduce_range(const RowReduction& work, int64_t first, int64_t last) {
  const int64_t N = work.rows.columns;
  float* scratch = row_scratch(2 * N);
  const RowsOutput outputs{work.out, work.x.element};
  for (int64_t row = first; row < last; ++row) {
    const float* x = work.x.read(work.rows, row, 0, N, scratch);
    if (work.reduction >= REDUCTION_SOFTMAX) {
      float* out = outputs.target(row * N, scratch + N);
      scale(work, out, x, N);
      outputs.finish(row * N, out, N);
    } else {
      float value;
      float* out = outputs.target(row, &value);
      *out = reduce(work.reduction, x, N);
      outputs.finish(row, out, 1);
    }
  }
}

} // namespace

void reduce_rows(const RowReduction& work) {
  for_ranges(work.rows.count(), work.rows.columns, [&](int64_t first, int64_t last) {
    reduce_range(work, first, last);
  });
}

} // namespace tessl::cpu
