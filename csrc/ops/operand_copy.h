#pragma once

#include "launch/plan.h"
#include "ops/matmul_plan.h"

namespace tessl {

// Where a copy of an operand stands: without gaps, its batch strides those of a row-contiguous array.
struct OperandCopy {
  Argument argument;
  FixedVector<int64_t, MATMUL_MAX_BATCH_DIMS> batch_strides;
};

// Appends the copy of `x`, rows x columns, row by row, or column by column when `transposed`; members of the batch that
// share their elements share them in the copy.
OperandCopy add_operand_copy(
    Plan& plan,
    const MatmulProblem& problem,
    const MatmulOperand& x,
    int32_t rows,
    int32_t columns,
    bool transposed,
    size_t itemsize
);

} // namespace tessl
