#pragma once

// clang-format off: the types first that simdgroup_matrix builds on
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
// clang-format on

constant constexpr int fragment_size = 8;

// The 8x8 fragment at (row, column) of a matrix that is staged as it is, or transposed.
template <typename T, bool TRANSPOSED>
inline metal::simdgroup_matrix<T, 8, 8> load_fragment(threadgroup const T* block, int pitch, int row, int column) {
  metal::simdgroup_matrix<T, 8, 8> result;
  const int offset = TRANSPOSED ? column * pitch + row : row * pitch + column;
  metal::simdgroup_load(result, block + offset, pitch, ulong2(0), TRANSPOSED);
  return result;
}
