#include "backends/cpu/rows.h"

namespace tessl::cpu {

const float* RowsInput::at(int64_t index, int64_t count, float* scratch) const {
  const char* first = static_cast<const char*>(data) + index * size_of(element);
  if (element == Element::float32 && source.column_stride == 1) {
    return reinterpret_cast<const float*>(first);
  }
  vector_kernels().load(element, scratch, first, source.column_stride, count);
  return scratch;
}

const float* RowsInput::read(const Rows& rows, int64_t row, int64_t column, int64_t count, float* scratch) const {
  return at(source.offset_of(row, rows.shape) + column * source.column_stride, count, scratch);
}

float* row_scratch(int64_t count) {
  static thread_local Scratch scratch;
  return scratch.reserve(count);
}

} // namespace tessl::cpu
