#pragma once

#include "backends/cpu/rows.h"

namespace tessl::cpu {

// out[s] = the mean of rows starts[s], ..., starts[s] + lengths[s] - 1 of x, of those that there are; zeros for none.
struct SegmentMean {
  RowsInput x;
  int64_t rows, columns, row_stride;
  const int32_t* starts;
  const int32_t* lengths;
  int64_t start_stride, length_stride;
  int64_t segments;
  void* out;
};

void segment_mean(const SegmentMean& mean);

} // namespace tessl::cpu
