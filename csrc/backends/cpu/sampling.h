#pragma once

#include <optional>

#include "backends/cpu/rows.h"

namespace tessl::cpu {

// As kernels/sampling.metal has it.
struct Sampling {
  Rows rows;
  RowsInput logits, noise;
  std::optional<float> softcap;
  std::optional<float> temperature;
  std::optional<int> top_k;
  std::optional<float> top_p;
  uint32_t* out;
};

void sample(const Sampling& sampling);

} // namespace tessl::cpu
