#pragma once

#include <metal_stdlib>

#include "kernels/common/vector_io.h"

// Blocks of an operand that the 128 threads of a threadgroup stage in threadgroup memory.

constant constexpr int matmul_threads = 128;

// A block of ROWS x COLUMNS elements in threadgroup memory, columns contiguous.
template <typename T, int ROWS, int COLUMNS>
struct StagedBlock {
  static constant constexpr int pitch = COLUMNS + 16 / sizeof(T);
  static constant constexpr int size = ROWS * pitch;
};

// Fills a staged block from the ROWS x COLUMNS elements at `source`, rows `stride` apart; what lies beyond the rows and
// columns that are left becomes zero and is not read.
template <typename T, int ROWS, int COLUMNS, typename Source>
inline void stage_block(
    threadgroup T* block, device const Source* source, int64_t stride, int2 left, bool vector, int thread_index
) {
  constexpr int quads = COLUMNS / 4;
  const bool interior = vector && left.x >= ROWS && left.y >= COLUMNS;
  for (int i = thread_index; i < ROWS * quads; i += matmul_threads) {
    const int row = i / quads;
    const int column = i % quads * 4;
    device const Source* p = source + (row * stride + column);
    const int count = row < left.x ? left.y - column : 0;
    const bool whole = interior || (vector && count >= 4);
    threadgroup T* slot = block + (row * StagedBlock<T, ROWS, COLUMNS>::pitch + column);
    *reinterpret_cast<threadgroup metal::vec<T, 4>*>(slot) = convert4<T>(whole ? load4(p) : load4(p, 1, count));
  }
}
