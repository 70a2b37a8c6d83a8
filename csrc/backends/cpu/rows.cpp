#include "backends/cpu/rows.h"

namespace tessl::cpu {

Element element_of(mlx::core::Dtype dtype) {
  if (dtype == mlx::core::float32) {
    return Element::float32;
  }
  return dtype == mlx::core::float16 ? Element::float16 : Element::bfloat16;
}

int64_t size_of(Element element) {
  return element == Element::float32 ? 4 : 2;
}

const float* RowsInput::read(const Rows& rows, int64_t row, int64_t column, int64_t count, float* scratch) const {
  const int64_t index = source.offset_of(row, rows.shape) + column * source.column_stride;
  const char* first = static_cast<const char*>(data) + index * size_of(element);
  if (element == Element::float32 && source.column_stride == 1) {
    return reinterpret_cast<const float*>(first);
  }
  vector_kernels().load(element, scratch, first, source.column_stride, count);
  return scratch;
}

float* row_scratch(int64_t count) {
  static thread_local Scratch scratch;
  return scratch.reserve(count);
}

} // namespace tessl::cpu
