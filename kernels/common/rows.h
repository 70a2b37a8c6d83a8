#pragma once

#include <metal_stdlib>

#include "kernels/args/rows.h"
#include "kernels/common/batch.h"
#include "kernels/common/vector_io.h"

inline int64_t row_offset(int64_t row, constant RowsArgs& rows, constant RowSourceArgs& source) {
  return batch_offset(uint(row), rows.ndim, rows.shape, source.strides);
}

// The elements [column, column + 4) of a row in float32, zeros past its end. `vector` promises that runs of four that
// start at a multiple of four are contiguous and on a boundary of four.
template <typename T>
inline float4 row_load(device const T* row, int64_t stride, bool vector, int column, int columns) {
  const int count = columns - column;
  return to_float4<T>(vector && count >= 4 ? load4(row + column) : load4(row + column * stride, stride, count));
}

// Writes them to a contiguous row.
template <typename T>
inline void row_store(device T* row, float4 values, bool vector, int column, int columns) {
  const metal::vec<T, 4> rounded = from_float4<T>(values);
  if (vector && columns - column >= 4) {
    store4(row + column, rounded);
  } else {
    store4(row + column, rounded, columns - column);
  }
}

// `x` in the first `count` components, `other` in the rest.
inline float4 first_of(float4 x, int count, float other) {
  return float4(x[0], count > 1 ? x[1] : other, count > 2 ? x[2] : other, count > 3 ? x[3] : other);
}

inline float sum_of(float4 x) {
  return (x[0] + x[1]) + (x[2] + x[3]);
}
