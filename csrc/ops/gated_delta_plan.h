#pragma once

#include <optional>

#include <mlx/dtype.h>

#include "launch/device_profile.h"
#include "launch/operand.h"
#include "launch/plan.h"
#include "ops/gated_delta_meaning.h"

namespace tessl {

// The longest rows of q and k that the kernels hold: token by token in registers, by chunks in threadgroup memory.
constexpr int most_delta_columns = 256;
constexpr int most_chunk_columns = 128;

// The operands of gated_delta, in the order of the primitive's inputs: see GatedDeltaInputs.
struct GatedDeltaProblem {
  mlx::core::Dtype dtype = mlx::core::float32;
  GatedDeltaForm form;
  Operand q, k, v, g, beta;
  std::optional<Operand> state, starts, lengths, A_log, dt_bias;
};

// T > 0. One launch token by token; from GATED_DELTA_FEW_TOKENS on two by chunks, and one more for the short rows of a
// ragged batch. Chunks are on the matrix units where the device has them and the form is relaxed.
Plan plan_gated_delta(const GatedDeltaProblem& problem, const DeviceProfile& device);

// What gated_delta_gradient computes: `forward` is a gated_delta without gates and with a state for each row, whose
// operands dy and dfinal_state follow.
struct GatedDeltaGradProblem {
  GatedDeltaProblem forward;
  Operand dy, dfinal_state;
};

// T > 0 and rows of at most most_chunk_columns. Five launches by chunks, whatever the rows.
Plan plan_gated_delta_grad(const GatedDeltaGradProblem& problem);

} // namespace tessl
