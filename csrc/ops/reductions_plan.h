#pragma once

#include <mlx/dtype.h>

#include "kernels/args/reductions.h"
#include "launch/operand.h"
#include "launch/plan.h"
#include "launch/rows.h"

namespace tessl {

struct ReductionProblem {
  mlx::core::Dtype dtype = mlx::core::float32;
  Reduction reduction = REDUCTION_SUM;
  float eps = 0.0f;
  Rows rows;
  RowSource x;
};

ReductionProblem make_reduction_problem(mlx::core::Dtype dtype, Reduction reduction, float eps, const Operand& x);

// One launch.
Plan plan_reduction(const ReductionProblem& problem);

} // namespace tessl
