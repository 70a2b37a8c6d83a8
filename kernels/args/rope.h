#pragma once

#include "kernels/args/rows.h"

// One of the arrays that a launch rotates. A position is an int32 for each row.
struct RopeRowsArgs {
  RowsArgs rows;
  RowSourceArgs x;
  RowSourceArgs positions;
  int64_t weight_stride; // elements
};

// The threadgroups from `groups_of_first` on take rows of the second array.
struct RopeArgs {
  RopeRowsArgs first;
  RopeRowsArgs second;
  int64_t inv_freq_stride; // elements
  int32_t groups_of_first;
  int32_t rotary_dim;
  float eps;
  float weight_offset;
};

static_assert(sizeof(RopeArgs) == 424, "host and shader must agree on RopeArgs");
