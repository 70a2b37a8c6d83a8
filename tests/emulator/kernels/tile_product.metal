#include <metal_simdgroup_matrix>
#include <metal_stdlib>
using namespace metal;

struct Sizes {
  int M, N, K;
};

// C = A B, 16 x 16 of C for each threadgroup of four simdgroups, each of which has one 8 x 8 quarter. Both operands go
// through threadgroup memory, 16 of K at a time, zeroed past the edges. Each macro plants one bug.
kernel void tile_product(
    device const float* a [[buffer(0)]],
    device const float* b [[buffer(1)]],
    device float* c [[buffer(2)]],
    constant Sizes& sizes [[buffer(3)]],
    uint2 tile [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]
) {
  constexpr int block = 16;
  threadgroup float left[block * block];
  threadgroup float right[block * block];
  threadgroup float result[block * block];
#ifdef SWAPPED_TILE
  const int m0 = tile.x * block, n0 = tile.y * block;
#else
  const int m0 = tile.y * block, n0 = tile.x * block;
#endif
  int rows = sizes.M, cols = sizes.N, depth = sizes.K;
#ifdef ROW_LIMIT_OFF_BY_ONE
  rows += 1;
#endif
#ifdef COLUMN_LIMIT_OFF_BY_ONE
  cols += 1;
#endif
#ifdef WRONG_PITCH
  const int a_pitch = sizes.N;
#else
  const int a_pitch = sizes.K;
#endif
#ifdef SAME_QUARTER
  const int row = simdgroup / 2 * 8, col = 0;
#else
  const int row = simdgroup / 2 * 8, col = simdgroup % 2 * 8;
#endif
#ifdef B_TRANSPOSED
  constexpr bool transposed = true;
#else
  constexpr bool transposed = false;
#endif
  simdgroup_float8x8 A, B;
#ifdef ACCUMULATOR_NOT_ZEROED
  simdgroup_float8x8 sum;
  simdgroup_load(sum, result + row * block + col, block);
#else
  simdgroup_float8x8 sum(0.0f);
#endif
#ifdef LAST_BLOCK_LEFT_OUT
  depth -= block;
#endif
  for (int k0 = 0; k0 < depth; k0 += block) {
#ifndef NO_BARRIER_BEFORE_LOAD
    threadgroup_barrier(mem_flags::mem_threadgroup);
#endif
    for (int i = thread_index; i < block * block; i += 128) {
      const int r = i / block, k = i % block;
#ifdef K_TAIL_NOT_ZEROED
      const int limit = sizes.M * sizes.K;
      left[i] = m0 + r < rows && (m0 + r) * a_pitch + k0 + k < limit ? a[(m0 + r) * a_pitch + k0 + k] : 0.0f;
#else
      left[i] = m0 + r < rows && k0 + k < sizes.K ? a[(m0 + r) * a_pitch + k0 + k] : 0.0f;
#endif
#ifdef K_TAIL_NOT_ZEROED
      if (k0 + r < sizes.K) {
        right[i] = n0 + k < cols ? b[(k0 + r) * sizes.N + n0 + k] : 0.0f;
      }
#else
      right[i] = k0 + r < sizes.K && n0 + k < cols ? b[(k0 + r) * sizes.N + n0 + k] : 0.0f;
#endif
    }
#ifndef NO_BARRIER_AFTER_LOAD
    threadgroup_barrier(mem_flags::mem_threadgroup);
#endif
    for (int k = 0; k < block; k += 8) {
      simdgroup_load(A, left + row * block + k, block);
      simdgroup_load(B, right + k * block + col, block, ulong2(0, 0), transposed);
      simdgroup_multiply_accumulate(sum, A, B, sum);
    }
  }
  simdgroup_store(sum, result + row * block + col, block);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int i = thread_index; i < block * block; i += 128) {
    const int r = m0 + i / block, n = n0 + i % block;
#ifdef STORE_WITHOUT_LIMITS
    c[r * sizes.N + n] = result[i];
#else
    if (r < rows && n < cols) {
      c[r * sizes.N + n] = result[i];
    }
#endif
  }
}
