#include "ops/sampling_plan.h"

#include "kernels/args/sampling.h"
#include "launch/typed_kernels.h"

namespace tessl {

SamplingProblem make_sampling_problem(
    mlx::core::Dtype dtype,
    const SamplingParameters& parameters,
    const Operand& logits,
    const std::optional<Operand>& noise
) {
  FixedVector<Operand, 2> operands{logits};
  if (noise) {
    operands.push_back(*noise);
  }
  const auto [rows, sources] = rows_of(logits.shape, {operands.begin(), operands.size()});
  return {dtype, parameters, rows, sources[0], noise ? std::optional(sources[1]) : std::nullopt};
}

Plan plan_sampling(const SamplingProblem& problem) {
  static const TypedKernels kernels("sample_rows", "sampling");
  const auto& [softcap, temperature, top_k, top_p] = problem.parameters;
  const auto& noise = problem.noise;

  Plan plan;
  plan.launches.push_back({});
  Launch& launch = plan.launches.back();
  launch.kernel = kernels.of(problem.dtype);
  set_row_teams(launch, problem.rows, /* always_wide = */ true);
  uint16_t index = 1;
  for (bool value :
       {noise.has_value(),
        softcap.has_value(),
        temperature.has_value(),
        top_k.has_value(),
        top_p.has_value(),
        problem.logits.in_runs_of_four(problem.dtype.size()),
        noise && noise->in_runs_of_four(sizeof(float))}) {
    launch.constants.push_back(FunctionConstant::boolean(index++, value));
  }
  launch.arguments = {Argument::input(0), noise ? Argument::input(1) : Argument::unused(), Argument::output(0)};
  launch.push_bytes(
      SamplingArgs{
          problem.rows.args(),
          problem.logits.args(),
          noise ? noise->args() : RowSourceArgs{},
          softcap.value_or(0.0f),
          temperature.value_or(1.0f),
          static_cast<float>(top_k.value_or(0)),
          top_p.value_or(1.0f)
      }
  );
  return plan;
}

} // namespace tessl
