#include "ops/rope_plan.h"

#include <array>
#include <initializer_list>

#include "kernels/args/rope.h"
#include "launch/typed_kernels.h"

namespace tessl {
namespace {

RowSource one_row(const Operand& x) {
  return rows_of(x.shape, {&x, 1}).sources[0];
}

RopeRows rope_rows(const RopeOperand& operand, const Operand& positions) {
  const std::array operands{operand.x, positions};
  const auto [rows, sources] = rows_of(operand.x.shape, operands);
  return {rows, sources[0], sources[1], operand.weight ? std::optional(one_row(*operand.weight)) : std::nullopt};
}

RopeRowsArgs args_of(const RopeRows& rope) {
  return {rope.rows.args(), rope.x.args(), rope.positions.args(), rope.weight ? rope.weight->column_stride : 0};
}

} // namespace

RopeProblem make_rope_problem(
    mlx::core::Dtype dtype,
    const RopeParameters& parameters,
    const RopeOperand& first,
    const std::optional<RopeOperand>& second,
    const Operand& positions,
    const Operand& inv_freq
) {
  RopeProblem problem{dtype, parameters, rope_rows(first, positions), std::nullopt, one_row(inv_freq)};
  if (second) {
    problem.second = rope_rows(*second, positions);
  }
  return problem;
}

Plan plan_rope(const RopeProblem& problem) {
  static const TypedKernels kernels("rope_rows", "rope");
  const auto& [dtype, parameters, first, second, inv_freq] = problem;
  const bool normalized = parameters.normalized;
  const size_t itemsize = dtype.size();

  Plan plan;
  plan.launches.push_back({});
  Launch& launch = plan.launches.back();
  launch.kernel = kernels.of(dtype);
  set_row_teams(launch, first.rows);
  const uint32_t groups_of_first = launch.grid.x;
  if (second) {
    Launch other;
    set_row_teams(other, second->rows);
    launch.grid.x += other.grid.x;
  }

  // Where each half of the rotated columns is of whole runs of four, so is all that is read and written.
  bool vector_x = parameters.rotary_dim % 8 == 0 && first.x.in_runs_of_four(itemsize);
  bool vector_weight = parameters.rotary_dim % 8 == 0 && first.weight && first.weight->in_runs_of_four(itemsize);
  if (second) {
    vector_x = vector_x && second->x.in_runs_of_four(itemsize);
    vector_weight = vector_weight && second->weight->in_runs_of_four(itemsize);
  }
  const bool vector_out = parameters.rotary_dim % 8 == 0 && first.rows.columns % 4 == 0;
  uint16_t index = 1;
  for (bool value :
       {parameters.interleaved,
        normalized,
        second.has_value(),
        vector_x,
        vector_out,
        vector_weight,
        normalized && second.has_value()}) {
    launch.constants.push_back(FunctionConstant::boolean(index++, value));
  }

  uint8_t input = 0;
  auto bind = [&](bool present) {
    launch.arguments.push_back(present ? Argument::input(input++) : Argument::unused());
  };
  bind(true);
  bind(second.has_value());
  bind(true);
  bind(true);
  bind(normalized);
  bind(normalized && second);
  launch.arguments.push_back(Argument::output(0));
  launch.arguments.push_back(second ? Argument::output(1) : Argument::unused());

  RopeArgs args{};
  args.first = args_of(first);
  if (second) {
    args.second = args_of(*second);
  }
  args.inv_freq_stride = inv_freq.column_stride;
  args.groups_of_first = static_cast<int32_t>(groups_of_first);
  args.rotary_dim = parameters.rotary_dim;
  args.eps = parameters.eps;
  args.weight_offset = parameters.weight_offset;
  launch.push_bytes(args);
  return plan;
}

} // namespace tessl
