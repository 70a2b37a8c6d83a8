#pragma once

#include "backends/cpu/rows.h"

namespace tessl::cpu {

// A norm of x + residual, as kernels/norms.metal has it. Outputs are contiguous rows of x's element.
struct Norm {
  Rows rows;
  RowsInput x, residual, gate;
  RowsInput weight, bias; // of one row
  bool centered;
  float eps;
  float weight_offset;
  void* out;
  void* sum; // x + residual, where there is a residual
};

void norm(const Norm& norm);

} // namespace tessl::cpu
