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
// A long K may be split: each threadgroup sums one partition of K, z of the grid telling which (common/partition.h),
// and stores float32 sums; then
//
//   reduce: out = finish(sum over the partitions, in order): the same bits at every run
//
// Vector kernels, for few rows of a, pass over b once:
//
//   nt, b the transpose of [N, K]: each simdgroup has 4 columns of the output and all rows of a
//     for k = 4 lane, 4 lane + 128, ... < K: sums[m, column] += a[m, k : k + 4] . b[k : k + 4, column]
//     sums over the lanes; lane i finishes and stores one element
//
//   nn: each threadgroup has 64 columns, each thread 4 of them and every 8th k
//     for k = first, first + 8, ... < K: sums[m, its 4 columns] += a[m, k] b[k, its 4 columns]
//     sums over the threads of a column, by a shuffle and then through threadgroup memory, in fixed order
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
#include "kernels/common/partition.h"
#include "kernels/common/simdgroup_blocks.h"

using namespace metal;

// As matmul_vector_out, of the operands as they lie: rows of K or M for a, of N or K for b.
constant bool matmul_vector_a [[function_constant(10)]];
constant bool matmul_vector_b [[function_constant(11)]];

template <typename T, typename Out, bool TRANSPOSED_A, bool TRANSPOSED_B, int TILE_M, int TILE_N>
[[kernel, max_total_threads_per_threadgroup(128)]] void matmul_portable(
    device const T* a [[buffer(0), function_constant(matmul_has_k)]],
    device const T* b [[buffer(1), function_constant(matmul_has_k)]],
    device Out* out [[buffer(2)]],
    constant MatmulArgs& args [[buffer(3)]],
    device const Out* c [[buffer(4), function_constant(matmul_has_c)]],
    device const Out* bias [[buffer(5), function_constant(matmul_has_bias)]],
    device const Out* residual [[buffer(6), function_constant(matmul_has_residual)]],
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
  const MatmulPart part = matmul_part(group.z, args);
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
    device const T* a_tile = a + (matmul_batch_offset(part.member, args, args.a_batch_strides) +
                                  (TRANSPOSED_A ? m0 + part.first * args.lda : m0 * args.lda + part.first));
    device const T* b_tile = b + (matmul_batch_offset(part.member, args, args.b_batch_strides) +
                                  (TRANSPOSED_B ? n0 * args.ldb + part.first : n0 + part.first * args.ldb));
    const int64_t a_step = TRANSPOSED_A ? tile_k * args.lda : int64_t(tile_k);
    const int64_t b_step = TRANSPOSED_B ? int64_t(tile_k) : tile_k * args.ldb;

    for (int k_left = part.k; k_left > 0; k_left -= tile_k) {
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

  const MatmulAddends<Out> addends = matmul_addends(c, bias, residual, args, part.member);
  device Out* out_matrix = matmul_matrix_of(out, group.z, args);
  threadgroup float* strip = reinterpret_cast<threadgroup float*>(memory) + int(simdgroup) * Strip::size;
  store_fragments(out_matrix, args, addends, acc, strip, int2(m_left - part_m, n_left - part_n), int(lane));
}

// Four elements along a contiguous line, zeros past the `count` that are left.
template <typename T>
inline float4 load_run(device const T* p, bool vector, int count) {
  return to_float4<T>(vector && count >= 4 ? load4(p) : load4(p, 1, count));
}

constant constexpr int simd_width = 32;

template <typename T, int ROWS>
[[kernel, max_total_threads_per_threadgroup(64)]] void matmul_vector_nt(
    device const T* a [[buffer(0), function_constant(matmul_has_k)]],
    device const T* b [[buffer(1), function_constant(matmul_has_k)]],
    device T* out [[buffer(2)]],
    constant MatmulArgs& args [[buffer(3)]],
    device const T* c [[buffer(4), function_constant(matmul_has_c)]],
    device const T* bias [[buffer(5), function_constant(matmul_has_bias)]],
    device const T* residual [[buffer(6), function_constant(matmul_has_residual)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane_index [[thread_index_in_simdgroup]]
) {
  constexpr int columns = 4;
  static_assert(ROWS * columns <= simd_width, "a lane stores one element at most");
  const int lane = int(lane_index);
  const int n0 = (int(group.x) * 2 + int(simdgroup)) * columns;
  if (n0 >= args.N) {
    return;
  }
  float sums[ROWS][columns];
#pragma clang loop unroll(full)
  for (int m = 0; m < ROWS; ++m) {
#pragma clang loop unroll(full)
    for (int j = 0; j < columns; ++j) {
      sums[m][j] = 0.0f;
    }
  }

  device const T* a_matrix = a + matmul_batch_offset(group.z, args, args.a_batch_strides);
  device const T* b_matrix = b + matmul_batch_offset(group.z, args, args.b_batch_strides);
  for (int k = lane * 4; k < args.K; k += simd_width * 4) {
    const int count = args.K - k;
    float4 weights[columns];
#pragma clang loop unroll(full)
    for (int j = 0; j < columns; ++j) {
      weights[j] = load_run(b_matrix + (min(n0 + j, args.N - 1) * args.ldb + k), matmul_vector_b, count);
    }
#pragma clang loop unroll(full)
    for (int m = 0; m < ROWS; ++m) {
      const float4 x = load_run(a_matrix + (min(m, args.M - 1) * args.lda + k), matmul_vector_a, count);
#pragma clang loop unroll(full)
      for (int j = 0; j < columns; ++j) {
        sums[m][j] += dot(x, weights[j]);
      }
    }
  }

  float own_sum = 0.0f;
#pragma clang loop unroll(full)
  for (int m = 0; m < ROWS; ++m) {
#pragma clang loop unroll(full)
    for (int j = 0; j < columns; ++j) {
      const float sum = simd_sum(sums[m][j]);
      own_sum = lane == m * columns + j ? sum : own_sum;
    }
  }
  const int m = lane / columns;
  const int n = n0 + lane % columns;
  if (m < min(ROWS, args.M) && n < args.N) {
    const MatmulAddends<T> addends = matmul_addends(c, bias, residual, args, group.z);
    matmul_store1(matmul_matrix_of(out, group.z, args), args, addends, own_sum, m, n);
  }
}

template <typename T, int ROWS>
[[kernel, max_total_threads_per_threadgroup(128)]] void matmul_vector_nn(
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
  constexpr int quads = 16;
  constexpr int simdgroups = 4;
  constexpr int k_step = simdgroups * simd_width / quads;
  static_assert(ROWS * quads <= simdgroups * simd_width, "a thread stores four elements at most");
  threadgroup float4 partial_sums[simdgroups][ROWS][quads];

  const int n0 = int(group.x) * quads * 4;
  const int n = n0 + int(lane % quads) * 4;
  float4 sums[ROWS];
#pragma clang loop unroll(full)
  for (int m = 0; m < ROWS; ++m) {
    sums[m] = float4(0.0f);
  }

  if (n < args.N) {
    device const T* a_matrix = a + matmul_batch_offset(group.z, args, args.a_batch_strides);
    device const T* b_columns = b + (matmul_batch_offset(group.z, args, args.b_batch_strides) + n);
    for (int k = int(thread_index) / quads; k < args.K; k += k_step) {
      const float4 weights = load_run(b_columns + k * args.ldb, matmul_vector_b, args.N - n);
#pragma clang loop unroll(full)
      for (int m = 0; m < ROWS; ++m) {
        sums[m] += float(a_matrix[min(m, args.M - 1) * args.lda + k]) * weights;
      }
    }
  }

#pragma clang loop unroll(full)
  for (int m = 0; m < ROWS; ++m) {
    const float4 sum = sums[m] + simd_shuffle_xor(sums[m], ushort(quads));
    if (lane < quads) {
      partial_sums[simdgroup][m][lane] = sum;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  const int m = int(thread_index) / quads;
  const int quad = int(thread_index) % quads;
  const int column = n0 + quad * 4;
  if (m < min(ROWS, args.M) && column < args.N) {
    float4 sum = partial_sums[0][m][quad];
    for (int s = 1; s < simdgroups; ++s) {
      sum += partial_sums[s][m][quad];
    }
    const MatmulAddends<T> addends = matmul_addends(c, bias, residual, args, group.z);
    matmul_store4(matmul_matrix_of(out, group.z, args), args, addends, sum, m, column, args.N - column);
  }
}

// Adds the partial sums of a split product and finishes them: four columns of a row a thread.
template <typename T>
[[kernel, max_total_threads_per_threadgroup(128)]] void matmul_reduce(
    device const float* partial_sums [[buffer(0)]],
    device T* out [[buffer(2)]],
    constant MatmulArgs& args [[buffer(3)]],
    device const T* c [[buffer(4), function_constant(matmul_has_c)]],
    device const T* bias [[buffer(5), function_constant(matmul_has_bias)]],
    device const T* residual [[buffer(6), function_constant(matmul_has_residual)]],
    uint3 position [[thread_position_in_grid]]
) {
  const int row = int(position.y);
  const int column = int(position.x) * 4;
  if (row >= args.M || column >= args.N) {
    return;
  }
  const int partitions = matmul_partitions(args);
  const int count = args.N - column;
  device const float* p =
      matmul_matrix_of(partial_sums, position.z * uint(partitions), args) + (int64_t(row) * args.N + column);
  float4 sum(0.0f);
  for (int i = 0; i < partitions; ++i) {
    sum += load_run(p, matmul_vector_out, count);
    p += int64_t(args.M) * args.N;
  }
  const MatmulAddends<T> addends = matmul_addends(c, bias, residual, args, position.z);
  matmul_store4(matmul_matrix_of(out, position.z, args), args, addends, sum, row, column, count);
}

#define instantiate_tile(layout, ta, tb, dtype, T, Out, M, N) \
  instantiate_kernel("matmul_portable_" #layout "_" #dtype "_" #M "x" #N, matmul_portable, T, Out, ta, tb, M, N)
#define instantiate_layouts(dtype, T, Out, M, N)                                                                 \
  instantiate_tile(nn, false, false, dtype, T, Out, M, N) instantiate_tile(nt, false, true, dtype, T, Out, M, N) \
      instantiate_tile(tn, true, false, dtype, T, Out, M, N) instantiate_tile(tt, true, true, dtype, T, Out, M, N)
#define instantiate_vector(dtype, T, rows)                                            \
  instantiate_kernel("matmul_vector_nt_" #dtype "_" #rows, matmul_vector_nt, T, rows) \
      instantiate_kernel("matmul_vector_nn_" #dtype "_" #rows, matmul_vector_nn, T, rows)
#define instantiate_dtype(dtype, T)                                                                       \
  instantiate_layouts(dtype, T, T, 64, 64) instantiate_layouts(dtype, T, T, 32, 32)                       \
      instantiate_tile(nt, false, true, dtype, T, T, 64, 32) instantiate_vector(dtype, T, 1)              \
          instantiate_vector(dtype, T, 2) instantiate_vector(dtype, T, 4) instantiate_vector(dtype, T, 8) \
              instantiate_kernel("matmul_reduce_" #dtype, matmul_reduce, T)

// What the rules of csrc/launch/gemm_tiles.cpp select. The _sums kernels store float32: partitions of K.
// clang-format off
instantiate_dtype(float32, float)
instantiate_dtype(float16, half)
instantiate_dtype(bfloat16, bfloat)
instantiate_layouts(float16_sums, half, float, 32, 32)
instantiate_layouts(bfloat16_sums, bfloat, float, 32, 32)
