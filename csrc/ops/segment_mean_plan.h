#pragma once

#include <mlx/dtype.h>

#include "launch/operand.h"
#include "launch/plan.h"

namespace tessl {

// One launch over x [R, N], starts [S] and lengths [S], both int32.
Plan plan_segment_mean(mlx::core::Dtype dtype, const Operand& x, const Operand& starts, const Operand& lengths);

} // namespace tessl
