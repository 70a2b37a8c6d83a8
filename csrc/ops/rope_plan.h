#pragma once

#include <optional>

#include <mlx/dtype.h>

#include "launch/operand.h"
#include "launch/plan.h"
#include "launch/rows.h"

namespace tessl {

struct RopeParameters {
  int rotary_dim = 0;
  bool interleaved = false;
  bool normalized = false;
  float eps = 0.0f;
  float weight_offset = 0.0f;

  bool operator==(const RopeParameters&) const = default;
};

// An array to rotate; `positions` broadcasts to it and has one column. The weight is there when normalized.
struct RopeOperand {
  Operand x;
  std::optional<Operand> weight;
};

struct RopeRows {
  Rows rows;
  RowSource x, positions;
  std::optional<RowSource> weight;
};

struct RopeProblem {
  mlx::core::Dtype dtype = mlx::core::float32;
  RopeParameters parameters;
  RopeRows first;
  std::optional<RopeRows> second;
  RowSource inv_freq; // one row
};

RopeProblem make_rope_problem(
    mlx::core::Dtype dtype,
    const RopeParameters& parameters,
    const RopeOperand& first,
    const std::optional<RopeOperand>& second,
    const Operand& positions,
    const Operand& inv_freq
);

// One launch. The primitive's inputs are first, second, positions, inv_freq, and the weights of first and second: those
// that are there.
Plan plan_rope(const RopeProblem& problem);

} // namespace tessl
