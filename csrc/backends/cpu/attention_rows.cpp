#include "backends/cpu/attention_rows.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "backends/cpu/vector_kernels.h"

namespace tessl::cpu {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

int64_t bound_of(const BoundsView& bounds, int64_t batch, int64_t fallback, int64_t Tk) {
  return bounds ? std::clamp<int64_t>(bounds.data[batch * bounds.stride], 0, Tk) : fallback;
}

// In units of log 2, without falling to -infinity by that: the lowest float is a common way to hide almost.
float bias_of(float x) {
  return x == -infinity ? x : std::max(x * log2_of_e, std::numeric_limits<float>::lowest());
}

} // namespace

NumberedKeys::NumberedKeys(const Attention& p, int64_t batch) : P(p.P) {
  start = bound_of(p.starts, batch, 0, p.Tk);
  own = std::max<int64_t>(bound_of(p.lengths, batch, p.Tk, p.Tk) - start, 0);
}

KeyRows KeyHead::rows_of(
    const HeadsView& prefix, const HeadsView& own, Range numbers, int64_t columns, Scratch& scratch
) const {
  auto source = [&](int64_t number) {
    return number < keys.P ? row_of(prefix, p.element, 0, kv_head, number)
                           : row_of(own, p.element, batch, kv_head, keys.start + number - keys.P);
  };
  const bool in_prefix = numbers.end <= keys.P;
  const auto& view = in_prefix ? prefix : own;
  if ((in_prefix || numbers.begin >= keys.P) && (view.strides[3] == 1 || columns == 1)) {
    return {p.element, source(numbers.begin), view.strides[2]};
  }
  float* gathered = scratch.reserve(std::max<int64_t>(numbers.size() * columns, 1));
  for (int64_t n = numbers.begin; n < numbers.end; ++n) {
    const int64_t column_stride = (n < keys.P ? prefix : own).strides[3];
    float* target = gathered + (n - numbers.begin) * columns;
    vector_kernels().load(p.element, target, source(n), column_stride, columns);
  }
  return {Element::float32, gathered, columns};
}

bool KeyHead::load_bias(int64_t row, Range numbers, float* bias) const {
  const auto& [batch_stride, head_stride, row_stride, column_stride] = p.mask.strides;
  const int64_t first = batch * batch_stride + head_of(row) * head_stride + query_of(row) * row_stride;
  // The mask counts hidden own keys too.
  auto column = [&](int64_t number) {
    return first + (number < keys.P ? number : number + keys.start) * column_stride;
  };
  bool any = false;
  if (p.boolean_mask) {
    const auto* mask = static_cast<const bool*>(p.mask.data);
    for (int64_t n = numbers.begin; n < numbers.end; ++n) {
      const bool seen = mask[column(n)];
      any |= seen;
      bias[n - numbers.begin] = seen ? 0.0f : -infinity;
    }
    return any;
  }
  const int64_t shared = std::clamp<int64_t>(keys.P - numbers.begin, 0, numbers.size());
  auto load = [&](int64_t from, int64_t count) {
    if (count > 0) {
      const void* source = advance(p.mask.data, p.element, column(numbers.begin + from));
      vector_kernels().load(p.element, bias + from, source, column_stride, count);
    }
  };
  load(0, shared);
  load(shared, numbers.size() - shared);
  for (int64_t i = 0; i < numbers.size(); ++i) {
    bias[i] = bias_of(bias[i]);
    any |= bias[i] != -infinity;
  }
  return any;
}

FloatRows float_rows(const KeyRows& rows, int64_t count, int64_t columns, Scratch& scratch) {
  if (rows.element == Element::float32) {
    return {static_cast<const float*>(rows.data), rows.stride};
  }
  float* converted = scratch.reserve(std::max<int64_t>(count * columns, 1));
  for (int64_t n = 0; n < count; ++n) {
    const void* source = advance(rows.data, rows.element, n * rows.stride);
    vector_kernels().load(rows.element, converted + n * columns, source, 1, columns);
  }
  return {converted, columns};
}

bool pad_rows(float* target, const KeyRows& rows, int64_t count, int64_t columns) {
  RowsCopy copy;
  copy.target = target;
  copy.target_stride = copy.width = padded_stride(columns);
  copy.element = rows.element;
  copy.source = rows.data;
  copy.source_stride = rows.stride;
  copy.count = count;
  copy.columns = columns;
  return attention_kernels().copy_rows(copy);
}

void pack_keys(float* panels, const FloatRows& rows, int64_t count, int64_t columns) {
  const auto& kernels = attention_kernels();
  for (int64_t n = 0; n < count; n += kernels.columns) {
    const int64_t size = std::min(kernels.columns, count - n);
    kernels.pack_transposed(panels + n * columns, rows.data + n * rows.stride, rows.stride, size, columns);
  }
}

ScoreRow score_row(const Attention& p, float* scores, Range columns, Range visible, const float* bias) {
  ScoreRow row;
  row.scores = scores;
  row.first = columns.begin;
  row.last = columns.end;
  row.begin = visible.begin;
  row.end = visible.end;
  row.cap = p.softcap * log2_of_e;
  row.bias = bias;
  return row;
}

} // namespace tessl::cpu
