#pragma once

#include <optional>

#include <mlx/dtype.h>

#include "launch/operand.h"
#include "launch/plan.h"

namespace tessl {

// x [B, T, C], weight [C, K], and what stands after them in the primitive's inputs where it is there.
struct CausalConv1dProblem {
  mlx::core::Dtype dtype = mlx::core::float32;
  Operand x, weight;
  std::optional<Operand> state, starts, lengths;
  bool with_silu = true;
};

// One launch.
Plan plan_causal_conv1d(const CausalConv1dProblem& problem);

} // namespace tessl
