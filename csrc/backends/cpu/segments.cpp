#include "backends/cpu/segments.h"

#include <algorithm>

namespace tessl::cpu {
namespace {

void mean_of_segment(const SegmentMean& work, int64_t segment) {
  const RowKernels& kernels = *vector_kernels().rows;
  const int64_t N = work.columns;
  const int64_t start = work.starts[segment * work.start_stride];
  const int64_t first = std::clamp<int64_t>(start, 0, work.rows);
  const int64_t last = std::clamp<int64_t>(start + work.lengths[segment * work.length_stride], first, work.rows);
  float* sums = row_scratch(2 * N);
  std::fill_n(sums, N, 0.0f);
  for (int64_t row = first; row < last; ++row) {
    kernels.add(sums, work.x.at(row * work.row_stride, N, sums + N), N);
  }
  const RowsOutput outputs{work.out, work.x.element};
  float* out = outputs.target(segment * N, sums);
  kernels.scale(out, 1.0f / static_cast<float>(std::max<int64_t>(last - first, 1)), sums, N);
  outputs.finish(segment * N, out, N);
}

} // namespace

void segment_mean(const SegmentMean& work) {
  const int64_t cost = (work.rows / std::max<int64_t>(work.segments, 1) + 1) * work.columns;
  for_ranges(work.segments, cost, [&](int64_t first, int64_t last) {
    for (int64_t segment = first; segment < last; ++segment) {
      mean_of_segment(work, segment);
    }
  });
}

} // namespace tessl::cpu
