#pragma once

// clang-format off: the types first that simdgroup_matrix builds on
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
// clang-format on

#include "kernels/common/delta_chunks.h"
#include "kernels/common/fragments.h"

// What the kernels of the gated delta rule by chunks have on simdgroup_matrix: a simdgroup's 16 tokens are two rows of
// fragments.

constant constexpr int row_fragments = simdgroup_rows / fragment_size;

constant constexpr int slice = 16; // columns of V, and of the blocks that are staged beside them
constant constexpr int slice_pitch = slice + 4;
constant constexpr int slice_fragments = slice / fragment_size;
constant constexpr int state_pitch = most_columns + 4;

// COLUMNS columns from `column` on of the tokens [first, first + tokens) of one head; zeros past them and past `width`.
template <typename T, int COLUMNS>
inline void stage_tokens(
    threadgroup float* block,
    device const T* head,
    int64_t token_stride,
    int64_t column_stride,
    int first,
    int tokens,
    int column,
    int width,
    int thread_index
) {
  for (int i = thread_index; i < C * COLUMNS; i += threads) {
    const int row = i / COLUMNS;
    const int place = column + i % COLUMNS;
    float x = 0.0f;
    if (row < tokens && place < width) {
      x = float(head[(first + row) * token_stride + place * column_stride]);
    }
    block[row * (COLUMNS + 4) + i % COLUMNS] = x;
  }
}

template <int COLUMNS>
inline void clear_fragments(thread metal::simdgroup_float8x8 (&acc)[row_fragments][COLUMNS]) {
#pragma clang loop unroll(full)
  for (int i = 0; i < row_fragments; ++i) {
#pragma clang loop unroll(full)
    for (int j = 0; j < COLUMNS; ++j) {
      acc[i][j] = metal::make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
  }
}

template <int COLUMNS>
inline void store_rows(
    threadgroup float* block, int pitch, thread metal::simdgroup_float8x8 (&acc)[row_fragments][COLUMNS], int first_row
) {
#pragma clang loop unroll(full)
  for (int i = 0; i < row_fragments; ++i) {
#pragma clang loop unroll(full)
    for (int j = 0; j < COLUMNS; ++j) {
      metal::simdgroup_store(acc[i][j], block + ((first_row + i * fragment_size) * pitch + j * fragment_size), pitch);
    }
  }
}

template <int COLUMNS>
inline void load_rows(
    thread metal::simdgroup_float8x8 (&acc)[row_fragments][COLUMNS],
    threadgroup const float* block,
    int pitch,
    int first_row
) {
#pragma clang loop unroll(full)
  for (int i = 0; i < row_fragments; ++i) {
#pragma clang loop unroll(full)
    for (int j = 0; j < COLUMNS; ++j) {
      acc[i][j] = load_fragment<float, false>(block, pitch, first_row + i * fragment_size, j * fragment_size);
    }
  }
}

// acc += the rows of this simdgroup of a lower triangular matrix in device memory, or of its transpose, times `block`.
template <bool TRANSPOSED, int COLUMNS>
inline void multiply_triangle(
    thread metal::simdgroup_float8x8 (&acc)[row_fragments][COLUMNS],
    device const float* lower,
    threadgroup const float* block,
    int pitch,
    int first_row
) {
  const int begin = TRANSPOSED ? first_row : 0;
  const int end = TRANSPOSED ? C : first_row + simdgroup_rows;
  for (int kk = begin; kk < end; kk += fragment_size) {
    metal::simdgroup_float8x8 left[row_fragments];
    metal::simdgroup_float8x8 right[COLUMNS];
#pragma clang loop unroll(full)
    for (int i = 0; i < row_fragments; ++i) {
      const int row = first_row + i * fragment_size;
      device const float* p = lower + (TRANSPOSED ? kk * C + row : row * C + kk);
      metal::simdgroup_load(left[i], p, C, ulong2(0), TRANSPOSED);
    }
#pragma clang loop unroll(full)
    for (int j = 0; j < COLUMNS; ++j) {
      right[j] = load_fragment<float, false>(block, pitch, kk, j * fragment_size);
    }
#pragma clang loop unroll(full)
    for (int i = 0; i < row_fragments; ++i) {
#pragma clang loop unroll(full)
      for (int j = 0; j < COLUMNS; ++j) {
        metal::simdgroup_multiply_accumulate(acc[i][j], left[i], right[j], acc[i][j]);
      }
    }
  }
}

// A slice of S^T to the rows from `first_value` on of a head's state in device memory.
inline void store_state(
    device float* out,
    constant GatedDeltaArgs& args,
    threadgroup const float* S,
    int first_value,
    int values,
    int thread_index
) {
  for (int i = thread_index; i < slice * most_columns; i += threads) {
    const int row = i / most_columns;
    const int column = i % most_columns;
    if (row < values && column < args.Dk) {
      out[int64_t(first_value + row) * args.Dk + column] = S[row * state_pitch + column];
    }
  }
}
