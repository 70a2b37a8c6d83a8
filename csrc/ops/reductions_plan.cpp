#include "ops/reductions_plan.h"

#include "launch/typed_kernels.h"

namespace tessl {

ReductionProblem make_reduction_problem(mlx::core::Dtype dtype, Reduction reduction, float eps, const Operand& x) {
  const auto [rows, sources] = rows_of(x.shape, {&x, 1});
  return {dtype, reduction, eps, rows, sources[0]};
}

Plan plan_reduction(const ReductionProblem& problem) {
  static const TypedKernels reducing("reduce_rows", "reductions");
  static const TypedKernels scaling("scale_rows", "reductions");
  const bool gives_rows = problem.reduction >= REDUCTION_SOFTMAX;

  Plan plan;
  plan.launches.push_back({});
  Launch& launch = plan.launches.back();
  launch.kernel = (gives_rows ? scaling : reducing).of(problem.dtype);
  set_row_teams(launch, problem.rows);
  launch.constants.push_back(FunctionConstant::int32(1, problem.reduction));
  launch.constants.push_back(FunctionConstant::boolean(2, problem.x.in_runs_of_four(problem.dtype.size())));
  if (gives_rows) {
    launch.constants.push_back(FunctionConstant::boolean(3, problem.rows.columns % 4 == 0));
  }
  launch.arguments = {Argument::input(0), Argument::output(0)};
  launch.push_bytes(ReductionArgs{problem.rows.args(), problem.x.args(), problem.eps, 0});
  return plan;
}

} // namespace tessl
