#pragma once

#include <mlx/dtype.h>

#include "kernels/args/gates.h"
#include "launch/operand.h"
#include "launch/plan.h"
#include "launch/rows.h"

namespace tessl {

// f(gate) x as rows, after broadcasting.
struct GateProblem {
  mlx::core::Dtype dtype = mlx::core::float32;
  GateFunction function = GATE_SIGMOID;
  Rows rows;
  RowSource gate, x;
};

GateProblem make_gate_problem(
    mlx::core::Dtype dtype, GateFunction function, const mlx::core::Shape& shape, const Operand& gate, const Operand& x
);

// One launch.
Plan plan_gate(const GateProblem& problem);

} // namespace tessl
