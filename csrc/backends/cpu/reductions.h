#pragma once

#include "backends/cpu/rows.h"
#include "kernels/args/reductions.h"

namespace tessl::cpu {

// As kernels/reductions.metal has it; `out` is contiguous, of x's element.
struct RowReduction {
  Reduction reduction;
  float eps;
  Rows rows;
  RowsInput x;
  void* out;
};

void reduce_rows(const RowReduction& reduction);

} // namespace tessl::cpu
