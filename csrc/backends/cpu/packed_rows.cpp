#include "backends/cpu/packed_rows.h"

#include <array>
#include <cmath>
#include <limits>

#include "backends/cpu/vector_kernels.h"

namespace tessl::cpu {
namespace {

thread_local Scratch scales_scratch;
thread_local Scratch biases_scratch;
thread_local Scratch words_scratch;

using ScaleTable = std::array<float, 256>;

// 2^(code - 127); MLX reads 255 as infinity.
float e8m0(int code) {
  return code == 255 ? std::numeric_limits<float>::infinity() : std::ldexp(1.0f, code - 127);
}

float e4m3(int code) {
  const int exponent = code >> 3 & 15;
  const int mantissa = code & 7;
  const float sign = code < 128 ? 1.0f : -1.0f;
  if ((code & 127) == 127) {
    return std::numeric_limits<float>::quiet_NaN();
  }
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                        : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return sign * magnitude;
}

ScaleTable table_of(float (*decode)(int)) {
  ScaleTable table;
  for (int code = 0; code < 256; ++code) {
    table[code] = decode(code);
  }
  return table;
}

const ScaleTable& scale_table(QuantizationMode mode) {
  static const ScaleTable powers_of_two = table_of(e8m0);
  static const ScaleTable floats = table_of(e4m3);
  return mode == QUANTIZATION_NVFP4 ? floats : powers_of_two;
}

} // namespace

void PackedRows::prepare(Range rows) {
  rows_ = rows;
  scales_ = prepare_floats(w_.scales, scales_scratch);
  if (w_.quantization.is_affine()) {
    biases_ = prepare_floats(w_.biases, biases_scratch);
  }
  words_ = prepare_words();
}

PackedRow PackedRows::row(int64_t index) const {
  const int64_t i = index - rows_.begin;
  const float* biases = biases_ == nullptr ? nullptr : biases_ + i * groups();
  return {words_ + i * word_stride_, scales_ + i * groups(), biases, w_.values};
}

const uint32_t* PackedRows::prepare_words() {
  const int64_t count = w_.values * w_.quantization.bits / 32;
  const auto [row_stride, stride] = w_.word_strides;
  const uint32_t* source = w_.words + rows_.begin * row_stride;
  if (stride == 1 || count <= 1) {
    word_stride_ = row_stride;
    return source;
  }
  auto* target = reinterpret_cast<uint32_t*>(words_scratch.reserve(rows_.size() * count));
  for (int64_t i = 0; i < rows_.size(); ++i) {
    for (int64_t j = 0; j < count; ++j) {
      target[i * count + j] = source[i * row_stride + j * stride];
    }
  }
  word_stride_ = count;
  return target;
}

const float* PackedRows::prepare_floats(const MatrixView& view, Scratch& scratch) const {
  const int64_t count = groups();
  const auto [row_stride, stride] = view.strides;
  const int64_t first = rows_.begin * row_stride;
  const bool contiguous = row_stride == count && (stride == 1 || count == 1);
  if (w_.quantization.is_affine()) {
    const void* source = advance(view.data, element_, first);
    if (contiguous && element_ == Element::float32) {
      return static_cast<const float*>(source);
    }
    float* target = scratch.reserve(rows_.size() * count);
    if (contiguous) {
      vector_kernels().load(element_, target, source, 1, rows_.size() * count);
      return target;
    }
    for (int64_t i = 0; i < rows_.size(); ++i) {
      vector_kernels().load(element_, target + i * count, advance(source, element_, i * row_stride), stride, count);
    }
    return target;
  }
  const ScaleTable& table = scale_table(w_.quantization.mode);
  const auto* codes = static_cast<const uint8_t*>(view.data) + first;
  float* target = scratch.reserve(rows_.size() * count);
  for (int64_t i = 0; i < rows_.size(); ++i) {
    for (int64_t group = 0; group < count; ++group) {
      target[i * count + group] = table[codes[i * row_stride + group * stride]];
    }
  }
  return target;
}

} // namespace tessl::cpu
