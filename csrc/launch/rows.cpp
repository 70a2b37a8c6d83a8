#include "launch/rows.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace tessl {
namespace {

constexpr int32_t simdgroup_threads = 32;
constexpr int32_t simdgroups = 8;
constexpr int32_t most_simdgroups = 32;

// Where four float4 for each thread of a simdgroup, and of 8 simdgroups, end.
constexpr int32_t narrow_columns = 512;
constexpr int32_t medium_columns = 4096;

// Size and stride of the dimension `d` places before the last; of one that is absent or has one element, 1 and 0.
int32_t size_at(const mlx::core::Shape& shape, size_t d) {
  return d < shape.size() ? shape[shape.size() - 1 - d] : 1;
}

int64_t stride_at(const Operand& x, size_t d) {
  return size_at(x.shape, d) == 1 ? 0 : x.strides[x.strides.size() - 1 - d];
}

// Dimensions are gathered from the innermost outwards.
bool extends_last_dimension(const RowsOfOperands& result, std::span<const Operand> operands, size_t d, int32_t size) {
  const auto& shape = result.rows.shape;
  if (shape.empty() || int64_t{shape.back()} * size > std::numeric_limits<int32_t>::max()) {
    return false;
  }
  for (size_t i = 0; i < operands.size(); ++i) {
    if (stride_at(operands[i], d) != shape.back() * result.sources[i].strides.back()) {
      return false;
    }
  }
  return true;
}

void add_dimension(RowsOfOperands& result, std::span<const Operand> operands, size_t d, int32_t size) {
  if (result.rows.shape.size() == ROWS_MAX_DIMS) {
    throw std::invalid_argument("[mlx_tessl] the rows have more than 8 dimensions that do not merge");
  }
  result.rows.shape.push_back(size);
  for (size_t i = 0; i < operands.size(); ++i) {
    result.sources[i].strides.push_back(stride_at(operands[i], d));
  }
}

} // namespace

int64_t RowSource::offset_of(int64_t row, const FixedVector<int32_t, ROWS_MAX_DIMS>& shape) const {
  int64_t elements = 0;
  for (size_t d = shape.size(); d-- > 1;) {
    elements += row % shape[d] * strides[d];
    row /= shape[d];
  }
  return shape.empty() ? 0 : elements + row * strides[0];
}

RowSourceArgs RowSource::args() const {
  RowSourceArgs args{column_stride, {}};
  std::copy(strides.begin(), strides.end(), args.strides);
  return args;
}

bool RowSource::in_runs_of_four(size_t itemsize) const {
  return column_stride == 1 && offset % static_cast<int64_t>(4 * itemsize) == 0 &&
         std::all_of(strides.begin(), strides.end(), [](int64_t stride) { return stride % 4 == 0; });
}

int64_t Rows::count() const {
  int64_t rows = 1;
  for (int32_t size : shape) {
    rows *= size;
  }
  return rows;
}

RowsArgs Rows::args() const {
  RowsArgs args{columns, static_cast<int32_t>(shape.size()), count(), {}};
  std::copy(shape.begin(), shape.end(), args.shape);
  return args;
}

RowsOfOperands rows_of(const mlx::core::Shape& shape, std::span<const Operand> operands) {
  RowsOfOperands result;
  result.rows.columns = size_at(shape, 0);
  for (const auto& operand : operands) {
    // A single column is contiguous, whatever its stride.
    const bool single = result.rows.columns == 1;
    result.sources.push_back({operand.offset, single ? 1 : stride_at(operand, 0), {}});
  }
  for (size_t d = 1; d < shape.size(); ++d) {
    const int32_t size = size_at(shape, d);
    if (size == 1) {
      continue;
    }
    if (extends_last_dimension(result, operands, d, size)) {
      result.rows.shape.back() *= size;
    } else {
      add_dimension(result, operands, d, size);
    }
  }
  std::reverse(result.rows.shape.begin(), result.rows.shape.end());
  for (auto& source : result.sources) {
    std::reverse(source.strides.begin(), source.strides.end());
  }
  return result;
}

void set_row_teams(Launch& launch, const Rows& rows, bool always_wide) {
  const bool wide = always_wide || rows.columns > narrow_columns;
  const int32_t group_simdgroups = wide && rows.columns > medium_columns ? most_simdgroups : simdgroups;
  const int64_t rows_a_group = wide ? 1 : group_simdgroups;
  launch.constants.push_back(FunctionConstant::boolean(0, wide));
  launch.group = {static_cast<uint32_t>(group_simdgroups * simdgroup_threads), 1, 1};
  launch.grid = {static_cast<uint32_t>((rows.count() + rows_a_group - 1) / rows_a_group), 1, 1};
}

} // namespace tessl
