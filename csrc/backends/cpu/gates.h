#pragma once

#include "backends/cpu/rows.h"

namespace tessl::cpu {

// out = f(gate) x; `out` contiguous rows of x's element.
struct Gate {
  GateFunction function;
  Rows rows;
  RowsInput gate, x;
  void* out;
};

void gate(const Gate& gate);

} // namespace tessl::cpu
