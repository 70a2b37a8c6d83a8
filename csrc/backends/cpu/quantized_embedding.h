#pragma once

#include <cstdint>
#include <span>

#include <mlx/dtype.h>

#include "backends/cpu/packed_rows.h"

namespace tessl::cpu {

// out[i] = row ids[i] of the weights, row-contiguous in `dtype`; zeros where the id, negative ones counted from the
// end, is no row.
struct QuantizedEmbedding {
  mlx::core::Dtype dtype;
  PackedMatrix w;
  int64_t rows = 0; // of w
  std::span<const int32_t> ids;
  void* out;
};

void quantized_embedding(const QuantizedEmbedding& embedding);

} // namespace tessl::cpu
