#pragma once

#include <optional>

#include <mlx/dtype.h>

#include "launch/operand.h"
#include "launch/plan.h"
#include "launch/rows.h"

namespace tessl {

struct NormParameters {
  bool centered = false; // layer_norm
  float eps = 0.0f;
  float weight_offset = 0.0f;

  bool operator==(const NormParameters&) const = default;
};

// What stands in the primitive's inputs after x, in this order; T is a bool, an operand or an array.
template <typename T>
struct NormOptionals {
  T residual{};
  T gate{};
  T weight{};
  T bias{};

  bool operator==(const NormOptionals&) const = default;
};

// The norm of x + residual as rows, each operand with its place in the primitive's inputs.
struct NormProblem {
  mlx::core::Dtype dtype = mlx::core::float32;
  NormParameters parameters;
  Rows rows;
  RowSource x;
  NormOptionals<std::optional<RowSource>> optionals; // weight and bias are one row
};

NormProblem make_norm_problem(
    mlx::core::Dtype dtype,
    const NormParameters& parameters,
    const Operand& x,
    const NormOptionals<std::optional<Operand>>& optionals
);

// One launch.
Plan plan_norm(const NormProblem& problem);

} // namespace tessl
