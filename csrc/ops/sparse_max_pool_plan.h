#pragma once

#include <optional>

#include <mlx/dtype.h>

#include "kernels/args/sparse_max_pool.h"
#include "launch/device_profile.h"
#include "launch/operand.h"
#include "launch/plan.h"

namespace tessl {

// The pooling of hidden [B, T, H] over tokens against weight [V, H]; see kernels/common/token_pool.h.
struct SparseMaxPoolProblem {
  mlx::core::Dtype dtype;
  Operand hidden, weight;
  std::optional<Operand> bias;    // [V]
  std::optional<Operand> lengths; // [B] int32
  SparseActivation activation = SPARSE_ACTIVATION_LOG1P_RELU;
  bool sums = false;
  bool relaxed = false; // float32 operands may be truncated to tf32
};

// Why not the matrix units; null when they are used.
const char* tensorops_obstacle(const SparseMaxPoolProblem& problem, const DeviceProfile& device);

// One launch, preceded by a copy of each operand whose units are not contiguous. The primitive's inputs in order:
// hidden, weight, bias and lengths if there.
Plan plan_sparse_max_pool(const SparseMaxPoolProblem& problem, const DeviceProfile& device);

} // namespace tessl
