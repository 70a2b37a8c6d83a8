#pragma once

// clang-format off: the types first that simdgroup_matrix builds on
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
// clang-format on

#include "kernels/common/fragments.h"
#include "kernels/common/matmul_epilogue.h"
#include "kernels/common/staged_block.h"

// What tiled products on simdgroup_matrix are made of, besides staged blocks: products of 8x8 fragments of them, and
// the way of the sums to device memory.

// acc += the 8 ROWS rows of a from `row` on times the 8 COLUMNS columns of b from `column` on, both staged.
template <typename T, bool TRANSPOSED_A, bool TRANSPOSED_B, int TILE_K, int ROWS, int COLUMNS>
inline void multiply_blocks(
    thread metal::simdgroup_float8x8 (&acc)[ROWS][COLUMNS],
    threadgroup const T* block_a,
    int pitch_a,
    threadgroup const T* block_b,
    int pitch_b,
    int row,
    int column
) {
#pragma clang loop unroll(full)
  for (int k = 0; k < TILE_K; k += fragment_size) {
    metal::simdgroup_matrix<T, 8, 8> a[ROWS];
    metal::simdgroup_matrix<T, 8, 8> b[COLUMNS];
#pragma clang loop unroll(full)
    for (int i = 0; i < ROWS; ++i) {
      a[i] = load_fragment<T, TRANSPOSED_A>(block_a, pitch_a, row + i * fragment_size, k);
    }
#pragma clang loop unroll(full)
    for (int j = 0; j < COLUMNS; ++j) {
      b[j] = load_fragment<T, TRANSPOSED_B>(block_b, pitch_b, k, column + j * fragment_size);
    }
#pragma clang loop unroll(full)
    for (int i = 0; i < ROWS; ++i) {
#pragma clang loop unroll(full)
      for (int j = 0; j < COLUMNS; ++j) {
        metal::simdgroup_multiply_accumulate(acc[i][j], a[i], b[j], acc[i][j]);
      }
    }
  }
}

// Finishes and stores acc by way of `strip`, the simdgroup's own. From its first element on, `left` rows and columns
// are left of the matrix.
template <typename T, int ROWS, int COLUMNS>
inline void store_fragments(
    device T* out,
    constant MatmulArgs& args,
    thread const MatmulAddends<T>& addends,
    thread metal::simdgroup_float8x8 (&acc)[ROWS][COLUMNS],
    threadgroup float* strip,
    int2 left,
    int lane
) {
  constexpr int columns = COLUMNS * fragment_size;
  constexpr int pitch = StagedBlock<float, fragment_size, columns>::pitch;
  constexpr int quads = columns / 4;
#pragma clang loop unroll(full)
  for (int i = 0; i < ROWS; ++i) {
#pragma clang loop unroll(full)
    for (int j = 0; j < COLUMNS; ++j) {
      metal::simdgroup_store(acc[i][j], strip + j * fragment_size, pitch);
    }
    metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
    for (int q = lane; q < fragment_size * quads; q += 32) {
      const int strip_row = q / quads;
      const int strip_column = q % quads * 4;
      const int rows_left = left.x - (i * fragment_size + strip_row);
      const int columns_left = left.y - strip_column;
      if (rows_left > 0 && columns_left > 0) {
        const float4 sum = *reinterpret_cast<threadgroup const float4*>(strip + (strip_row * pitch + strip_column));
        matmul_store4(out, args, addends, sum, args.M - rows_left, args.N - columns_left, columns_left);
      }
    }
    metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
  }
}
