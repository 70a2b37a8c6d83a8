#pragma once

#include <cstdint>
#include <optional>

#include <mlx/dtype.h>

#include "launch/operand.h"
#include "launch/plan.h"
#include "launch/quantization.h"

namespace tessl {

// The rows `ids`, int32 and contiguous, of packed weights. Inputs in order: ids, w [V, words], scales [V, groups] and,
// when affine, biases like them.
struct QuantizedEmbeddingProblem {
  mlx::core::Dtype dtype = mlx::core::float32;
  Quantization quantization;
  int64_t ids = 0;
  Operand w, scales;
  std::optional<Operand> biases;
};

// One launch, preceded by a copy of each of w, scales and biases that is not contiguous along its rows. Throws
// std::invalid_argument for more ids than a grid has rows.
Plan plan_quantized_embedding(const QuantizedEmbeddingProblem& problem);

} // namespace tessl
