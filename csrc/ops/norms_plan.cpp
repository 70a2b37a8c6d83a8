#include "ops/norms_plan.h"

#include "kernels/args/norms.h"
#include "launch/typed_kernels.h"

namespace tessl {
namespace {

RowSource one_row(const Operand& x) {
  return rows_of(x.shape, {&x, 1}).sources[0];
}

} // namespace

NormProblem make_norm_problem(
    mlx::core::Dtype dtype,
    const NormParameters& parameters,
    const Operand& x,
    const NormOptionals<std::optional<Operand>>& optionals
) {
  FixedVector<Operand, 3> operands{x};
  auto shape = x.shape;
  for (const auto* optional : {&optionals.residual, &optionals.gate}) {
    if (*optional) {
      operands.push_back(**optional);
    }
  }
  const auto [rows, sources] = rows_of(shape, {operands.begin(), operands.size()});
  NormProblem problem{dtype, parameters, rows, sources[0], {}};
  size_t next = 1;
  if (optionals.residual) {
    problem.optionals.residual = sources[next++];
  }
  if (optionals.gate) {
    problem.optionals.gate = sources[next++];
  }
  if (optionals.weight) {
    problem.optionals.weight = one_row(*optionals.weight);
  }
  if (optionals.bias) {
    problem.optionals.bias = one_row(*optionals.bias);
  }
  return problem;
}

Plan plan_norm(const NormProblem& problem) {
  static const TypedKernels kernels("norm_rows", "norms");
  const auto& [residual, gate, weight, bias] = problem.optionals;
  const size_t itemsize = problem.dtype.size();

  Plan plan;
  plan.launches.push_back({});
  Launch& launch = plan.launches.back();
  launch.kernel = kernels.of(problem.dtype);
  set_row_teams(launch, problem.rows);

  auto constant = [&launch, index = uint16_t{1}](bool value) mutable {
    launch.constants.push_back(FunctionConstant::boolean(index++, value));
  };
  auto in_runs = [&](const std::optional<RowSource>& source) { return source && source->in_runs_of_four(itemsize); };
  constant(problem.parameters.centered);
  constant(residual.has_value());
  constant(gate.has_value());
  constant(weight.has_value());
  constant(bias.has_value());
  constant(in_runs(problem.x));
  constant(in_runs(residual));
  constant(in_runs(gate));
  constant(in_runs(weight));
  constant(in_runs(bias));
  constant(problem.rows.columns % 4 == 0);

  NormArgs args{};
  args.rows = problem.rows.args();
  args.x = problem.x.args();
  args.eps = problem.parameters.eps;
  args.weight_offset = problem.parameters.weight_offset;

  uint8_t input = 0;
  launch.arguments.push_back(Argument::input(input++));
  auto bind = [&](const std::optional<RowSource>& source, RowSourceArgs& target) {
    launch.arguments.push_back(source ? Argument::input(input++) : Argument::unused());
    target = source ? source->args() : RowSourceArgs{};
  };
  RowSourceArgs weight_args;
  RowSourceArgs bias_args;
  bind(residual, args.residual);
  bind(gate, args.gate);
  bind(weight, weight_args);
  bind(bias, bias_args);
  args.weight_stride = weight_args.column_stride;
  args.bias_stride = bias_args.column_stride;
  launch.arguments.push_back(Argument::output(0));
  launch.arguments.push_back(residual ? Argument::output(1) : Argument::unused());
  launch.push_bytes(args);
  return plan;
}

} // namespace tessl
