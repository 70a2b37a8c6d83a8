#pragma once

#include <optional>

#include <mlx/dtype.h>

#include "launch/operand.h"
#include "launch/plan.h"
#include "launch/rows.h"

namespace tessl {

// What is done to the logits of a row before the greatest is taken; absent is not done.
struct SamplingParameters {
  std::optional<float> softcap;
  std::optional<float> temperature;
  std::optional<int> top_k;
  std::optional<float> top_p;

  bool operator==(const SamplingParameters&) const = default;
};

struct SamplingProblem {
  mlx::core::Dtype dtype = mlx::core::float32;
  SamplingParameters parameters;
  Rows rows;
  RowSource logits;
  std::optional<RowSource> noise; // float32
};

SamplingProblem make_sampling_problem(
    mlx::core::Dtype dtype,
    const SamplingParameters& parameters,
    const Operand& logits,
    const std::optional<Operand>& noise
);

// One launch, a threadgroup a row.
Plan plan_sampling(const SamplingProblem& problem);

} // namespace tessl
