#include "ops/operand_copy.h"

#include <utility>

#include "ops/copy_plan.h"

namespace tessl {

OperandCopy add_operand_copy(
    Plan& plan,
    const MatmulProblem& problem,
    const MatmulOperand& x,
    int32_t rows,
    int32_t columns,
    bool transposed,
    size_t itemsize
) {
  FixedVector<int32_t, MATMUL_MAX_BATCH_DIMS + 2> shape;
  FixedVector<int64_t, MATMUL_MAX_BATCH_DIMS + 2> strides;
  for (size_t d = 0; d < problem.batch_shape.size(); ++d) {
    shape.push_back(x.batch_strides[d] == 0 ? 1 : problem.batch_shape[d]);
    strides.push_back(x.batch_strides[d]);
  }
  shape.push_back(transposed ? columns : rows);
  shape.push_back(transposed ? rows : columns);
  strides.push_back(transposed ? x.col_stride : x.row_stride);
  strides.push_back(transposed ? x.row_stride : x.col_stride);

  OperandCopy copy{{}, x.batch_strides};
  int64_t members = int64_t{rows} * columns;
  for (size_t d = problem.batch_shape.size(); d-- > 0;) {
    copy.batch_strides[d] = x.batch_strides[d] == 0 ? 0 : members;
    members *= shape[d];
  }
  const Argument scratch = plan.add_scratch(static_cast<size_t>(members) * itemsize);
  const std::span<const int32_t> copied_shape{shape.begin(), shape.size()};
  add_copy(
      plan, itemsize, Argument::input(x.input), x.offset, scratch, copied_shape, {strides.begin(), strides.size()}
  );
  copy.argument = Argument::scratch_in(scratch.index);
  return copy;
}

} // namespace tessl
