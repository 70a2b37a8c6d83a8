#pragma once

#include "kernels/args/rows.h"

struct NormArgs {
  RowsArgs rows;
  RowSourceArgs x;
  RowSourceArgs residual;
  RowSourceArgs gate;
  int64_t weight_stride; // elements
  int64_t bias_stride;
  float eps;
  float weight_offset;
};

static_assert(sizeof(NormArgs) == 288, "host and shader must agree on NormArgs");
