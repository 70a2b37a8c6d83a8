#pragma once

#include "kernels/args/rows.h"

struct ReductionArgs {
  RowsArgs rows;
  RowSourceArgs x;
  float eps;
  int32_t reserved;
};

static_assert(sizeof(ReductionArgs) == 128, "host and shader must agree on ReductionArgs");

// Values of [[function_constant(1)]]. Those from REDUCTION_SOFTMAX on give a row, the others one value.
enum Reduction {
  REDUCTION_SUM = 0,
  REDUCTION_MAX = 1,
  REDUCTION_LOGSUMEXP = 2,
  REDUCTION_SOFTMAX = 3,
  REDUCTION_L2_NORMALIZE = 4,
};
