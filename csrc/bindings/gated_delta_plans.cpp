#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "bindings/bindings.h"
#include "bindings/plan_values.h"
#include "ops/causal_conv1d_plan.h"
#include "ops/gated_delta_plan.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tessl {
namespace {

using MaybeOperand = std::optional<Operand>;

// With A_log and dt_bias, g and beta are a and b.
Plan gated_delta_plan(
    const std::string& dtype,
    const Operand& q,
    const Operand& k,
    const Operand& v,
    const Operand& g,
    const Operand& beta,
    const MaybeOperand& state,
    const MaybeOperand& starts,
    const MaybeOperand& lengths,
    const MaybeOperand& A_log,
    const MaybeOperand& dt_bias,
    bool normalize_qk,
    bool relaxed,
    const std::string& gpu,
    const std::string& macos
) {
  const GatedDeltaForm form{
      A_log.has_value(), state.has_value(), starts.has_value(), lengths.has_value(), normalize_qk, relaxed
  };
  return plan_gated_delta(
      {parse_dtype(dtype), form, q, k, v, g, beta, state, starts, lengths, A_log, dt_bias},
      make_device_profile(gpu, macos)
  );
}

// Of a gated_delta without gates, with a state for each row.
Plan gated_delta_grad_plan(
    const std::string& dtype,
    const Operand& q,
    const Operand& k,
    const Operand& v,
    const Operand& g,
    const Operand& beta,
    const Operand& state,
    const Operand& dy,
    const Operand& dfinal_state,
    const MaybeOperand& starts,
    const MaybeOperand& lengths,
    bool normalize_qk
) {
  const GatedDeltaForm form{false, true, starts.has_value(), lengths.has_value(), normalize_qk, false};
  return plan_gated_delta_grad(
      {{parse_dtype(dtype), form, q, k, v, g, beta, state, starts, lengths, {}, {}}, dy, dfinal_state}
  );
}

Plan causal_conv1d_plan(
    const std::string& dtype,
    const Operand& x,
    const Operand& weight,
    const MaybeOperand& state,
    const MaybeOperand& starts,
    const MaybeOperand& lengths,
    bool with_silu
) {
  return plan_causal_conv1d({parse_dtype(dtype), x, weight, state, starts, lengths, with_silu});
}

Plan causal_conv1d_grad_plan(
    const std::string& dtype,
    const Operand& x,
    const Operand& weight,
    const Operand& dy,
    const Operand& dlast,
    const MaybeOperand& state,
    const MaybeOperand& starts,
    const MaybeOperand& lengths,
    bool with_silu
) {
  return plan_causal_conv1d_grad({{parse_dtype(dtype), x, weight, state, starts, lengths, with_silu}, dy, dlast});
}

} // namespace

void bind_gated_delta_plans(nb::module_& m) {
  auto plan = nb::cast<nb::module_>(m.attr("plan"));
  plan.def(
      "gated_delta",
      &gated_delta_plan,
      "dtype"_a,
      "q"_a,
      "k"_a,
      "v"_a,
      "g"_a,
      "beta"_a,
      nb::kw_only(),
      "state"_a.none() = nb::none(),
      "starts"_a.none() = nb::none(),
      "lengths"_a.none() = nb::none(),
      "A_log"_a.none() = nb::none(),
      "dt_bias"_a.none() = nb::none(),
      "normalize_qk"_a = false,
      "relaxed"_a = false,
      "gpu"_a = "m1",
      "macos"_a = "14.0"
  );
  plan.def(
      "gated_delta_grad",
      &gated_delta_grad_plan,
      "dtype"_a,
      "q"_a,
      "k"_a,
      "v"_a,
      "g"_a,
      "beta"_a,
      "state"_a,
      "dy"_a,
      "dfinal_state"_a,
      nb::kw_only(),
      "starts"_a.none() = nb::none(),
      "lengths"_a.none() = nb::none(),
      "normalize_qk"_a = false
  );
  plan.def(
      "causal_conv1d",
      &causal_conv1d_plan,
      "dtype"_a,
      "x"_a,
      "weight"_a,
      nb::kw_only(),
      "state"_a.none() = nb::none(),
      "starts"_a.none() = nb::none(),
      "lengths"_a.none() = nb::none(),
      "with_silu"_a = true
  );
  plan.def(
      "causal_conv1d_grad",
      &causal_conv1d_grad_plan,
      "dtype"_a,
      "x"_a,
      "weight"_a,
      "dy"_a,
      "dlast"_a,
      nb::kw_only(),
      "state"_a.none() = nb::none(),
      "starts"_a.none() = nb::none(),
      "lengths"_a.none() = nb::none(),
      "with_silu"_a = true
  );
}

} // namespace tessl
