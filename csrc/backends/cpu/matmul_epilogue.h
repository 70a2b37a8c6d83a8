#pragma once

#include <cstdint>

#include "backends/cpu/matmul.h"
#include "backends/cpu/pieces.h"

namespace tessl::cpu {

// Float32 sums of a block: where they are and the distance between rows.
struct Sums {
  float* data = nullptr;
  int64_t leading_dimension = 0;

  float* row(int64_t m) const {
    return data + m * leading_dimension;
  }
};

// The epilogue of a product over the sums of a block of its output, which may stand in the output itself.
void finish(const Matmul& product, Range rows, Range columns, Sums sums);

} // namespace tessl::cpu
