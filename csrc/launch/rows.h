#pragma once

#include <cstdint>
#include <span>

#include "kernels/args/rows.h"
#include "launch/fixed_vector.h"
#include "launch/operand.h"
#include "launch/plan.h"

namespace tessl {

// Where the rows of one operand are; strides in elements, 0 where it is broadcast.
struct RowSource {
  int64_t offset = 0; // bytes from the start of its buffer
  int64_t column_stride = 0;
  FixedVector<int64_t, ROWS_MAX_DIMS> strides; // as Rows::shape

  // Elements from the operand's first to the first of row `row`.
  int64_t offset_of(int64_t row, const FixedVector<int32_t, ROWS_MAX_DIMS>& shape) const;
  RowSourceArgs args() const;

  // Whether each four elements that start at a multiple of four of a row are contiguous and on a boundary of four.
  bool in_runs_of_four(size_t itemsize) const;
};

// Arrays [..., columns] as rows: the dimensions before the last, merged where all operands allow, outermost first.
struct Rows {
  int32_t columns = 0;
  FixedVector<int32_t, ROWS_MAX_DIMS> shape;

  int64_t count() const;
  RowsArgs args() const;
};

struct RowsOfOperands {
  Rows rows;
  FixedVector<RowSource, 4> sources; // of the operands, in order
};

// Operands that broadcast from the right to `shape`, which has 1 to ROWS_MAX_DIMS + 1 dimensions.
RowsOfOperands rows_of(const mlx::core::Shape& shape, std::span<const Operand> operands);

// Sets the threads of a launch whose threadgroups take one row each (`wide`), or one for each of their simdgroups: the
// rule of kernels/common/row_team.h, whose function constant 0 it sets. It depends on the columns alone, so that a
// row's bits do not depend on the others.
void set_row_teams(Launch& launch, const Rows& rows, bool always_wide = false);

} // namespace tessl
