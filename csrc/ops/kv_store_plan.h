#pragma once

#include "launch/operand.h"
#include "launch/plan.h"

namespace tessl {

// The launch that stores x, preceded by a copy of the cache unless the output is `in_place` of it. The positions are
// int32 and broadcast to the rows of x, in one column.
Plan plan_kv_store(size_t itemsize, const Operand& cache, const Operand& x, const Operand& positions, bool in_place);

} // namespace tessl
