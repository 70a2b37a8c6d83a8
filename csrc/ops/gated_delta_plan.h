#pragma once

#include <optional>

#include <mlx/dtype.h>

#include "launch/operand.h"
#include "launch/plan.h"
#include "ops/gated_delta_meaning.h"

namespace tessl {

// The longest row of q and k that the kernel holds in registers.
constexpr int most_delta_columns = 256;

// The operands of gated_delta, in the order of the primitive's inputs: see GatedDeltaInputs.
struct GatedDeltaProblem {
  mlx::core::Dtype dtype = mlx::core::float32;
  GatedDeltaForm form;
  Operand q, k, v, g, beta;
  std::optional<Operand> state, starts, lengths, A_log, dt_bias;
};

// One launch; T > 0.
Plan plan_gated_delta(const GatedDeltaProblem& problem);

} // namespace tessl
