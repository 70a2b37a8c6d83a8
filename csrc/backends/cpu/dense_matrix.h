#pragma once

#include <array>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "backends/cpu/scratch.h"

namespace tessl::cpu {

// A matrix as libraries take it: in row-major storage, or, when `transposed`, the transpose of one.
template <typename T>
struct DenseMatrix {
  const T* data = nullptr;
  int64_t leading_dimension = 0;
  bool transposed = false;
};

inline bool steps_by_one(int64_t stride, int64_t extent) {
  return stride == 1 || extent == 1;
}

// Which way a strided matrix lies in memory: along its rows, or, when `transposed`, along its columns.
struct Orientation {
  bool transposed;
  int64_t outer, inner;
  int64_t outer_stride, inner_stride;

  Orientation(std::array<int64_t, 2> strides, int64_t rows, int64_t columns)
      : transposed(false), outer(rows), inner(columns), outer_stride(strides[0]), inner_stride(strides[1]) {
    transposed = !steps_by_one(inner_stride, inner) &&
                 (steps_by_one(outer_stride, outer) || std::abs(outer_stride) < std::abs(inner_stride));
    if (transposed) {
      std::swap(outer, inner);
      std::swap(outer_stride, inner_stride);
    }
  }

  int64_t leading_dimension() const {
    return outer == 1 ? inner : outer_stride;
  }

  // Whether a library can read it where it is.
  bool is_dense() const {
    return steps_by_one(inner_stride, inner) && leading_dimension() >= inner;
  }
};

// A strided matrix of `rows` x `columns` where it is, or, where a library could not read it, its copy in `scratch`.
template <typename T>
DenseMatrix<T> dense_matrix(
    const T* source, std::array<int64_t, 2> strides, int64_t rows, int64_t columns, Scratch& scratch
) {
  const Orientation lie(strides, rows, columns);
  if (lie.is_dense()) {
    return {source, lie.leading_dimension(), lie.transposed};
  }
  T* copy = scratch.reserve_as<T>(rows * columns);
  for (int64_t i = 0; i < lie.outer; ++i) {
    for (int64_t j = 0; j < lie.inner; ++j) {
      copy[i * lie.inner + j] = source[i * lie.outer_stride + j * lie.inner_stride];
    }
  }
  return {copy, lie.inner, lie.transposed};
}

} // namespace tessl::cpu
