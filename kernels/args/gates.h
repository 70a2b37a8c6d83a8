#pragma once

#include "kernels/args/rows.h"

struct GateArgs {
  RowsArgs rows;
  RowSourceArgs gate;
  RowSourceArgs x;
};

static_assert(sizeof(GateArgs) == 192, "host and shader must agree on GateArgs");

// Values of [[function_constant(0)]].
enum GateFunction {
  GATE_SIGMOID = 0,
  GATE_SILU = 1,
  GATE_GELU = 2, // by erf
  GATE_GELU_TANH = 3,
};
