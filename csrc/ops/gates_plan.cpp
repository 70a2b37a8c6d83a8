#include "ops/gates_plan.h"

#include <array>

#include "launch/typed_kernels.h"

namespace tessl {

GateProblem make_gate_problem(
    mlx::core::Dtype dtype, GateFunction function, const mlx::core::Shape& shape, const Operand& gate, const Operand& x
) {
  const std::array operands{gate, x};
  const auto [rows, sources] = rows_of(shape, operands);
  return {dtype, function, rows, sources[0], sources[1]};
}

Plan plan_gate(const GateProblem& problem) {
  static const TypedKernels kernels("gate_rows", "gates");
  const size_t itemsize = problem.dtype.size();
  const int64_t quads = (int64_t{problem.rows.columns} + 3) / 4;

  Plan plan;
  plan.launches.push_back({});
  Launch& launch = plan.launches.back();
  launch.kernel = kernels.of(problem.dtype);
  launch.constants = {
      FunctionConstant::int32(0, problem.function),
      FunctionConstant::boolean(1, problem.gate.in_runs_of_four(itemsize)),
      FunctionConstant::boolean(2, problem.x.in_runs_of_four(itemsize)),
      FunctionConstant::boolean(3, problem.rows.columns % 4 == 0),
  };
  launch.arguments = {Argument::input(0), Argument::input(1), Argument::output(0)};
  launch.push_bytes(GateArgs{problem.rows.args(), problem.gate.args(), problem.x.args()});
  launch.group = {32, 8, 1};
  launch.grid = {static_cast<uint32_t>((quads + 31) / 32), static_cast<uint32_t>((problem.rows.count() + 7) / 8), 1};
  return plan;
}

} // namespace tessl
