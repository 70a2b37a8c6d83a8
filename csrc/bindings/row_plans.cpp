#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <mlx/utils.h>

#include "bindings/bindings.h"
#include "bindings/plan_values.h"
#include "ops/gates_plan.h"
#include "ops/kv_store_plan.h"
#include "ops/norms_plan.h"
#include "ops/reductions_plan.h"
#include "ops/rope_plan.h"
#include "ops/sampling_plan.h"
#include "ops/segment_mean_plan.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tessl {
namespace {

using MaybeOperand = std::optional<Operand>;

Plan norm_plan(
    const std::string& dtype,
    const Operand& x,
    bool centered,
    const MaybeOperand& residual,
    const MaybeOperand& gate,
    const MaybeOperand& weight,
    const MaybeOperand& bias
) {
  return plan_norm(make_norm_problem(parse_dtype(dtype), {centered, 1e-6f, 0.0f}, x, {residual, gate, weight, bias}));
}

Plan gate_plan(const std::string& dtype, int function, const Operand& gate, const Operand& x) {
  const auto shape = mlx::core::broadcast_shapes(gate.shape, x.shape);
  return plan_gate(make_gate_problem(parse_dtype(dtype), static_cast<GateFunction>(function), shape, gate, x));
}

Plan rope_plan(
    const std::string& dtype,
    const Operand& first,
    const MaybeOperand& second,
    const Operand& positions,
    const Operand& inv_freq,
    const MaybeOperand& weight,
    bool interleaved
) {
  const RopeParameters parameters{2 * inv_freq.shape[0], interleaved, weight.has_value(), 1e-6f, 0.0f};
  const auto other = second ? std::optional(RopeOperand{*second, weight}) : std::nullopt;
  return plan_rope(make_rope_problem(parse_dtype(dtype), parameters, {first, weight}, other, positions, inv_freq));
}

Plan reduction_plan(const std::string& dtype, int reduction, const Operand& x) {
  return plan_reduction(make_reduction_problem(parse_dtype(dtype), static_cast<Reduction>(reduction), 1e-12f, x));
}

Plan sampling_plan(
    const std::string& dtype,
    const Operand& logits,
    const MaybeOperand& noise,
    std::optional<int> top_k,
    std::optional<float> top_p
) {
  return plan_sampling(make_sampling_problem(parse_dtype(dtype), {{}, {}, top_k, top_p}, logits, noise));
}

} // namespace

void bind_row_plans(nb::module_& m) {
  auto plan = nb::cast<nb::module_>(m.attr("plan"));
  plan.def(
      "norm",
      &norm_plan,
      "dtype"_a,
      "x"_a,
      nb::kw_only(),
      "centered"_a = false,
      "residual"_a.none() = nb::none(),
      "gate"_a.none() = nb::none(),
      "weight"_a.none() = nb::none(),
      "bias"_a.none() = nb::none()
  );
  plan.def("gate", &gate_plan, "dtype"_a, "function"_a, "gate"_a, "x"_a);
  plan.def(
      "rope",
      &rope_plan,
      "dtype"_a,
      "first"_a,
      "second"_a.none(),
      "positions"_a,
      "inv_freq"_a,
      nb::kw_only(),
      "weight"_a.none() = nb::none(),
      "interleaved"_a = false
  );
  plan.def("reduction", &reduction_plan, "dtype"_a, "reduction"_a, "x"_a);
  plan.def(
      "sampling",
      &sampling_plan,
      "dtype"_a,
      "logits"_a,
      nb::kw_only(),
      "noise"_a.none() = nb::none(),
      "top_k"_a.none() = nb::none(),
      "top_p"_a.none() = nb::none()
  );
  plan.def("kv_store", &plan_kv_store, "itemsize"_a, "cache"_a, "new"_a, "positions"_a, "in_place"_a);
  plan.def(
      "segment_mean",
      [](const std::string& dtype, const Operand& x, const Operand& starts, const Operand& lengths) {
        return plan_segment_mean(parse_dtype(dtype), x, starts, lengths);
      },
      "dtype"_a,
      "x"_a,
      "starts"_a,
      "lengths"_a
  );
}

} // namespace tessl
