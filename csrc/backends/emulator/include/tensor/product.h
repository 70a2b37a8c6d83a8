#pragma once

#include "../runtime/machine.h"
#include "../msl/vector.h"

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

// a[k][M], b[k][N], c[M][N]; M a multiple of 4, N of 16; rows of b and c aligned to 32 bytes.
template <typename T>
void multiply_packed(const T* a, const T* b, T* c, int M, int N, int K) {
  using V = typename PackedVector<T>::type;
  for (int n = 0; n < N; n += tile_cols) {
    for (int m = 0; m < M; m += tile_rows) {
      V sum[tile_rows][2];
      for (int i = 0; i < tile_rows; ++i) {
        const V* row = reinterpret_cast<const V*>(c + (m + i) * N + n);
        sum[i][0] = row[0];
        sum[i][1] = row[1];
      }
      const T* ak = a + m;
      const T* bk = b + n;
      for (int k = 0; k < K; ++k, ak += M, bk += N) {
        const V b0 = reinterpret_cast<const V*>(bk)[0];
        const V b1 = reinterpret_cast<const V*>(bk)[1];
#pragma clang loop unroll(full)
        for (int i = 0; i < tile_rows; ++i) {
          const V ai = ak[i];
          sum[i][0] = multiply_add(ai, b0, sum[i][0]);
          sum[i][1] = multiply_add(ai, b1, sum[i][1]);
        }
      }
      for (int i = 0; i < tile_rows; ++i) {
        V* row = reinterpret_cast<V*>(c + (m + i) * N + n);
        row[0] = sum[i][0];
        row[1] = sum[i][1];
      }
    }
  }
}

EMU_RUNTIME_END

} // namespace emu
