// out = activation(alpha a b + beta c + bias) + residual, on simdgroup_matrix: every Apple silicon GPU.
//
//   for each tile of TILE_M x TILE_N outputs, one threadgroup of 4 simdgroups, 2 x 2 over the tile:
//     acc = 0                                       float32, 8x8 fragments in registers
//     for k0 = 0, TILE_K, 2 TILE_K, ... < K:
//       stage a[tile rows, k0 : k0 + TILE_K] and b[k0 : k0 + TILE_K, tile columns] as they lie, zeros past the edges
//       barrier
//       for each 8 of the TILE_K: acc += a fragments x b fragments
//       barrier
//     for each strip of 8 rows of a simdgroup's part:
//       the simdgroup writes its fragments to threadgroup memory and reads them back by rows, four columns a lane:
//       nothing is assumed of how a simdgroup_matrix lies in its lanes
//       finish (common/matmul_epilogue.h) and store
//
// The sum over k runs in ascending order for every element, whatever the tile.
//
// Provenance: blocked GEMM after Goto and van de Geijn (2008); the layouts nn, nt, tn, tt differ only in how a staged
// block lies, so that a transposed operand is never copied.
// TILE_K: 64 bytes of each staged row, half a cache line of 128 bytes (16 for float32 is also what MLX's steel GEMM
// uses). Row padding: 16 bytes, against bank conflicts (as in MLX's quantized GEMM, BK + 16 / sizeof(T)).

// clang-format off: the types first that simdgroup_matrix builds on
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
// clang-format on

#include "kernels/common/grid_walk.h"
#include "kernels/common/instantiate.h"
#include "kernels/common/matmul_epilogue.h"
#include "kernels/common/simdgroup_blocks.h"

using namespace metal;

// As matmul_vector_out, of the operands as they lie: rows of K or M for a, of N or K for b.
constant bool matmul_vector_a [[function_constant(10)]];
constant bool matmul_vector_b [[function_constant(11)]];

template <typename T, bool TRANSPOSED_A, bool TRANSPOSED_B, int TILE_M, int TILE_N>
[[kernel, max_total_threads_per_threadgroup(128)]] void matmul_portable(
    device const T* a [[buffer(0), function_constant(matmul_has_k)]],
    device const T* b [[buffer(1), function_constant(matmul_has_k)]],
    device T* out [[buffer(2)]],
    constant MatmulArgs& args [[buffer(3)]],
    device const T* c [[buffer(4), function_constant(matmul_has_c)]],
    device const T* bias [[buffer(5), function_constant(matmul_has_bias)]],
    device const T* residual [[buffer(6), function_constant(matmul_has_residual)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]
) {
  constexpr int tile_k = 64 / sizeof(T);
  constexpr int fragments_m = TILE_M / 2 / fragment_size; // of one simdgroup
  constexpr int fragments_n = TILE_N / 2 / fragment_size;

  constexpr int a_rows = TRANSPOSED_A ? tile_k : TILE_M;
  constexpr int a_columns = TRANSPOSED_A ? TILE_M : tile_k;
  constexpr int b_rows = TRANSPOSED_B ? TILE_N : tile_k;
  constexpr int b_columns = TRANSPOSED_B ? tile_k : TILE_N;
  using BlockA = StagedBlock<T, a_rows, a_columns>;
  using BlockB = StagedBlock<T, b_rows, b_columns>;
  using Strip = StagedBlock<float, fragment_size, TILE_N / 2>;

  // The strips of the epilogue take the place of the staged blocks.
  constexpr int memory_size = (BlockA::size + BlockB::size) * sizeof(T) / sizeof(float4);
  static_assert(4 * Strip::size * sizeof(float) <= memory_size * sizeof(float4), "a strip for each simdgroup");
  static_assert(memory_size * sizeof(float4) <= 32768, "threadgroup memory of every Apple GPU");
  threadgroup float4 memory[memory_size];

  const GridTile tile = grid_tile(group.x, group.y, args.tiles_m, args.tiles_n, args.walk_width);
  if (!tile.inside) {
    return;
  }
  const int m0 = tile.row * TILE_M;
  const int n0 = tile.column * TILE_N;
  const int m_left = args.M - m0;
  const int n_left = args.N - n0;
  const int part_m = int(simdgroup / 2) * (TILE_M / 2);
  const int part_n = int(simdgroup % 2) * (TILE_N / 2);

  simdgroup_float8x8 acc[fragments_m][fragments_n];
#pragma clang loop unroll(full)
  for (int i = 0; i < fragments_m; ++i) {
#pragma clang loop unroll(full)
    for (int j = 0; j < fragments_n; ++j) {
      acc[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
  }

  if (matmul_has_k) {
    threadgroup T* block_a = reinterpret_cast<threadgroup T*>(memory);
    threadgroup T* block_b = block_a + BlockA::size;
    device const T* a_tile =
        a + (matmul_batch_offset(group.z, args, args.a_batch_strides) + (TRANSPOSED_A ? int64_t(m0) : m0 * args.lda));
    device const T* b_tile =
        b + (matmul_batch_offset(group.z, args, args.b_batch_strides) + (TRANSPOSED_B ? n0 * args.ldb : int64_t(n0)));
    const int64_t a_step = TRANSPOSED_A ? tile_k * args.lda : int64_t(tile_k);
    const int64_t b_step = TRANSPOSED_B ? int64_t(tile_k) : tile_k * args.ldb;

    for (int k_left = args.K; k_left > 0; k_left -= tile_k) {
      const int2 a_left = TRANSPOSED_A ? int2(k_left, m_left) : int2(m_left, k_left);
      const int2 b_left = TRANSPOSED_B ? int2(n_left, k_left) : int2(k_left, n_left);
      stage_block<T, a_rows, a_columns>(block_a, a_tile, args.lda, a_left, matmul_vector_a, int(thread_index));
      stage_block<T, b_rows, b_columns>(block_b, b_tile, args.ldb, b_left, matmul_vector_b, int(thread_index));
      threadgroup_barrier(mem_flags::mem_threadgroup);
      multiply_blocks<T, TRANSPOSED_A, TRANSPOSED_B, tile_k>(
          acc, block_a, BlockA::pitch, block_b, BlockB::pitch, part_m, part_n
      );
      threadgroup_barrier(mem_flags::mem_threadgroup);
      a_tile += a_step;
      b_tile += b_step;
    }
  }

  MatmulAddends<T> addends;
  if (matmul_has_c) {
    addends.c = c + matmul_batch_offset(group.z, args, args.c.batch_strides);
  }
  if (matmul_has_bias) {
    addends.bias = bias + matmul_batch_offset(group.z, args, args.bias.batch_strides);
  }
  if (matmul_has_residual) {
    addends.residual = residual + matmul_batch_offset(group.z, args, args.residual.batch_strides);
  }
  device T* out_matrix = out + int64_t(group.z) * args.M * args.N;
  threadgroup float* strip = reinterpret_cast<threadgroup float*>(memory) + int(simdgroup) * Strip::size;
  store_fragments(out_matrix, args, addends, acc, strip, int2(m_left - part_m, n_left - part_n), int(lane));
}

#define instantiate_tile(layout, ta, tb, dtype, T, M, N) \
  instantiate_kernel("matmul_portable_" #layout "_" #dtype "_" #M "x" #N, matmul_portable, T, ta, tb, M, N)
#define instantiate_layout(layout, ta, tb, dtype, T) \
  instantiate_tile(layout, ta, tb, dtype, T, 64, 64) instantiate_tile(layout, ta, tb, dtype, T, 32, 32)
#define instantiate_dtype(dtype, T)                                                            \
  instantiate_layout(nn, false, false, dtype, T) instantiate_layout(nt, false, true, dtype, T) \
      instantiate_layout(tn, true, false, dtype, T) instantiate_layout(tt, true, true, dtype, T)

// clang-format off
instantiate_dtype(float32, float)
instantiate_dtype(float16, half)
instantiate_dtype(bfloat16, bfloat)
