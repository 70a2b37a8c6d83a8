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

// The gradients of x, of the weight and, in float32, of the state of each row, from dy and dlast, which stand after the
// other inputs.
struct CausalConv1dGradProblem {
  CausalConv1dProblem forward;
  Operand dy, dlast;
};

// Four launches: K > 1 and T > 0.
Plan plan_causal_conv1d_grad(const CausalConv1dGradProblem& problem);

} // namespace tessl
