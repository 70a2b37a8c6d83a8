#pragma once

#include "../msl/vector.h"
#include "../runtime/machine.h"

// C += A B on packed operands: the arithmetic behind matmul2d.

namespace emu {

EMU_RUNTIME_BEGIN

typedef float float8v __attribute__((ext_vector_type(8)));
typedef int int8v __attribute__((ext_vector_type(8)));

EMU_INLINE float8v multiply_add(float8v a, float8v b, float8v c) {
  return __builtin_elementwise_fma(a, b, c);
}
EMU_INLINE int8v multiply_add(int8v a, int8v b, int8v c) {
  typedef unsigned uint8v __attribute__((ext_vector_type(8)));
  return (int8v)((uint8v)a * (uint8v)b + (uint8v)c); // wraps
}

template <typename T>
struct PackedVector;
template <>
struct PackedVector<float> {
  using type = float8v;
};
template <>
struct PackedVector<int> {
  using type = int8v;
};

constexpr int tile_rows = 4;
constexpr int tile_cols = 16;

// An operand as panels of `width` rows of A, or columns of B, each stored by k.
template <typename T, int width>
struct Panels {
  T* data;
  int64_t K;

  static constexpr int64_t elements(int64_t X, int64_t K) {
    return (X + width - 1) / width * width * K;
  }
  T* panel(int64_t x) const {
    return data + x / width * width * K;
  }
  T& at(int64_t x, int64_t k) const {
    return panel(x)[k * width + x % width];
  }
};

template <typename T>
using LeftPanels = Panels<T, tile_rows>;
template <typename T>
using RightPanels = Panels<T, tile_cols>;

// One tile of C, kept in registers over all of k.
template <typename T>
EMU_INLINE void multiply_tile(const T* a, const T* b, T* c, int64_t row_stride, int64_t K) {
  using V = typename PackedVector<T>::type;
  V sum[tile_rows][2];
#pragma clang loop unroll(full)
  for (int i = 0; i < tile_rows; ++i) {
    const V* row = reinterpret_cast<const V*>(c + i * row_stride);
    sum[i][0] = row[0];
    sum[i][1] = row[1];
  }
  for (int64_t k = 0; k < K; ++k, a += tile_rows, b += tile_cols) {
    const V b0 = reinterpret_cast<const V*>(b)[0];
    const V b1 = reinterpret_cast<const V*>(b)[1];
#pragma clang loop unroll(full)
    for (int i = 0; i < tile_rows; ++i) {
      const V ai = a[i];
      sum[i][0] = multiply_add(ai, b0, sum[i][0]);
      sum[i][1] = multiply_add(ai, b1, sum[i][1]);
    }
  }
#pragma clang loop unroll(full)
  for (int i = 0; i < tile_rows; ++i) {
    V* row = reinterpret_cast<V*>(c + i * row_stride);
    row[0] = sum[i][0];
    row[1] = sum[i][1];
  }
}

// c[M][N]; M a multiple of 4, N of 16; panels and c aligned to 32 bytes.
template <typename T>
void multiply_panels(const LeftPanels<T>& a, const RightPanels<T>& b, T* c, int M, int N) {
  for (int n = 0; n < N; n += tile_cols) {
    for (int m = 0; m < M; m += tile_rows) {
      multiply_tile(a.panel(m), b.panel(n), c + int64_t(m) * N + n, N, a.K);
    }
  }
}

EMU_RUNTIME_END

} // namespace emu
