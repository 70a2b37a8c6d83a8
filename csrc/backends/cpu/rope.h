#pragma once

#include "backends/cpu/rows.h"

namespace tessl::cpu {

// Rows to rotate, as kernels/rope.metal has it. `positions` has an int32 for each row, `weight` and `inv_freq`
// (float32) are one row. Without a weight there is no norm.
struct Rope {
  Rows rows;
  RowsInput x, weight;
  const int32_t* positions_data;
  RowSource positions;
  RowsInput inv_freq;
  int64_t rotary_dim;
  bool interleaved;
  float eps;
  float weight_offset;
  void* out;
};

void rope(const Rope& rope);

} // namespace tessl::cpu
