#pragma once

#include "kernels/args/rows.h"

// Segment s of x [rows, columns] is the rows from starts[s] on, lengths[s] of them, cut to those that there are.
struct SegmentArgs {
  int64_t rows;
  int64_t row_stride; // elements, of all strides
  int64_t column_stride;
  int64_t start_stride;
  int64_t length_stride;
  int32_t columns;
  int32_t reserved;
};

static_assert(sizeof(SegmentArgs) == 48, "host and shader must agree on SegmentArgs");
