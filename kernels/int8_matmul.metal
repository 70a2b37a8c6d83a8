// out = a b exactly in int32, or activation(a b scale_a scale_b + bias): int8 operands on simdgroup_matrix, which takes
// no integers, on every Apple silicon GPU.
//
//   for each tile of TILE_M x TILE_N outputs, one threadgroup of 4 simdgroups, 2 x 2 over the tile:
//     total = 0                                     int32, as the fragments lie in registers
//     for each 1024 of K:
//       acc = 0                                     float32
//       for each 32 of them: stage a and b as half, zeros past the edges; acc += a x b
//       total += acc
//     by strips of 8 rows through threadgroup memory, the high and the low bits after one another: finish and store
//
// Why it is exact: an int8 is exact in half, a product of two is at most 2^14, and 1024 of them sum to 2^24 at most,
// up to which float32 holds every integer. total >> 12 and total & 4095 are exact in float32 again.
//
// Provenance: the tiles are those of matmul.metal.

// clang-format off: the types first that simdgroup_matrix builds on
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
// clang-format on

#include "kernels/common/grid_walk.h"
#include "kernels/common/instantiate.h"
#include "kernels/common/int8_epilogue.h"
#include "kernels/common/simdgroup_blocks.h"

using namespace metal;

constant bool int8_vector_a [[function_constant(10)]];
constant bool int8_vector_b [[function_constant(11)]];

constant constexpr int tile_k = 32;
constant constexpr int exact_k = 1024;
constant constexpr int low_bits = 12;

template <int ROWS, int COLUMNS>
inline void clear(thread simdgroup_float8x8 (&acc)[ROWS][COLUMNS]) {
#pragma clang loop unroll(full)
  for (int i = 0; i < ROWS; ++i) {
#pragma clang loop unroll(full)
    for (int j = 0; j < COLUMNS; ++j) {
      acc[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
  }
}

template <int ROWS, int COLUMNS>
inline void add_to_totals(thread int2 (&totals)[ROWS][COLUMNS], thread simdgroup_float8x8 (&acc)[ROWS][COLUMNS]) {
#pragma clang loop unroll(full)
  for (int i = 0; i < ROWS; ++i) {
#pragma clang loop unroll(full)
    for (int j = 0; j < COLUMNS; ++j) {
      const float2 sums = acc[i][j].thread_elements();
      totals[i][j] += int2(int(sums[0]), int(sums[1]));
    }
  }
}

// One row of fragments, the bits from 12 on or those below, to the simdgroup's strip.
template <int COLUMNS>
inline void store_bits(thread int2 (&totals)[COLUMNS], bool high, threadgroup float* strip, int pitch) {
#pragma clang loop unroll(full)
  for (int j = 0; j < COLUMNS; ++j) {
    simdgroup_float8x8 fragment;
    const int2 total = totals[j];
    const int2 bits = high ? total >> low_bits : total & ((1 << low_bits) - 1);
    fragment.thread_elements() = float2(float(bits[0]), float(bits[1]));
    simdgroup_store(fragment, strip + j * fragment_size, pitch);
  }
}

template <typename Out, int ROWS, int COLUMNS>
inline void store_totals(
    thread const Int8Sink<Out>& sink,
    thread int2 (&totals)[ROWS][COLUMNS],
    threadgroup float* strip,
    int2 left,
    int lane
) {
  constexpr int columns = COLUMNS * fragment_size;
  constexpr int pitch = StagedBlock<float, fragment_size, columns>::pitch;
  constexpr int quads = columns / 4;
  constexpr int quads_a_lane = fragment_size * quads / 32;
#pragma clang loop unroll(full)
  for (int i = 0; i < ROWS; ++i) {
    int4 sums[quads_a_lane];
#pragma clang loop unroll(full)
    for (int part = 0; part < 2; ++part) {
      store_bits(totals[i], part == 0, strip, pitch);
      simdgroup_barrier(mem_flags::mem_threadgroup);
#pragma clang loop unroll(full)
      for (int s = 0; s < quads_a_lane; ++s) {
        const int q = lane + s * 32;
        const float4 bits = *reinterpret_cast<threadgroup const float4*>(strip + (q / quads * pitch + q % quads * 4));
        const int4 integers = int4(int(bits[0]), int(bits[1]), int(bits[2]), int(bits[3]));
        sums[s] = part == 0 ? integers * (1 << low_bits) : sums[s] + integers;
      }
      simdgroup_barrier(mem_flags::mem_threadgroup);
    }
#pragma clang loop unroll(full)
    for (int s = 0; s < quads_a_lane; ++s) {
      const int q = lane + s * 32;
      const int row = i * fragment_size + q / quads;
      const int column = q % quads * 4;
      if (row < left.x && column < left.y) {
        sink.store4(sums[s], row, column);
      }
    }
  }
}

template <typename Out, bool TRANSPOSED_A, bool TRANSPOSED_B, int TILE_M, int TILE_N>
[[kernel, max_total_threads_per_threadgroup(128)]] void int8_portable(
    device const int8_t* a [[buffer(0), function_constant(matmul_has_k)]],
    device const int8_t* b [[buffer(1), function_constant(matmul_has_k)]],
    device Out* out [[buffer(2)]],
    constant Int8MatmulArgs& args [[buffer(3)]],
    device const float* scale_a [[buffer(4), function_constant(int8_has_scale_a)]],
    device const float* bias [[buffer(5), function_constant(matmul_has_bias)]],
    device const float* scale_b [[buffer(6), function_constant(int8_has_scale_b)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]
) {
  constexpr int fragments_m = TILE_M / 2 / fragment_size; // of one simdgroup
  constexpr int fragments_n = TILE_N / 2 / fragment_size;
  constexpr int a_rows = TRANSPOSED_A ? tile_k : TILE_M;
  constexpr int a_columns = TRANSPOSED_A ? TILE_M : tile_k;
  constexpr int b_rows = TRANSPOSED_B ? TILE_N : tile_k;
  constexpr int b_columns = TRANSPOSED_B ? tile_k : TILE_N;
  using BlockA = StagedBlock<half, a_rows, a_columns>;
  using BlockB = StagedBlock<half, b_rows, b_columns>;
  using Strip = StagedBlock<float, fragment_size, TILE_N / 2>;

  // The strips of the epilogue take the place of the staged blocks.
  constexpr int memory_size = (BlockA::size + BlockB::size) * sizeof(half) / sizeof(float4);
  static_assert(4 * Strip::size * sizeof(float) <= memory_size * sizeof(float4), "a strip for each simdgroup");
  threadgroup float4 memory[memory_size];

  constant MatmulArgs& product = args.product;
  const GridTile tile = grid_tile(group.x, group.y, product.tiles_m, product.tiles_n, product.walk_width);
  if (!tile.inside) {
    return;
  }
  const int m0 = tile.row * TILE_M;
  const int n0 = tile.column * TILE_N;
  const int m_left = product.M - m0;
  const int n_left = product.N - n0;
  const int part_m = int(simdgroup / 2) * (TILE_M / 2);
  const int part_n = int(simdgroup % 2) * (TILE_N / 2);

  simdgroup_float8x8 acc[fragments_m][fragments_n];
  int2 totals[fragments_m][fragments_n];
  clear(acc);
#pragma clang loop unroll(full)
  for (int i = 0; i < fragments_m; ++i) {
#pragma clang loop unroll(full)
    for (int j = 0; j < fragments_n; ++j) {
      totals[i][j] = int2(0);
    }
  }

  if (matmul_has_k) {
    threadgroup half* block_a = reinterpret_cast<threadgroup half*>(memory);
    threadgroup half* block_b = block_a + BlockA::size;
    device const int8_t* a_tile = a + (matmul_batch_offset(group.z, product, product.a_batch_strides) +
                                       (TRANSPOSED_A ? int64_t(m0) : m0 * product.lda));
    device const int8_t* b_tile = b + (matmul_batch_offset(group.z, product, product.b_batch_strides) +
                                       (TRANSPOSED_B ? n0 * product.ldb : int64_t(n0)));
    const int64_t a_step = TRANSPOSED_A ? tile_k * product.lda : int64_t(tile_k);
    const int64_t b_step = TRANSPOSED_B ? int64_t(tile_k) : tile_k * product.ldb;

    for (int k = 0; k < product.K; k += tile_k) {
      if (k > 0 && k % exact_k == 0) {
        add_to_totals(totals, acc);
        clear(acc);
      }
      const int k_left = product.K - k;
      const int2 a_left = TRANSPOSED_A ? int2(k_left, m_left) : int2(m_left, k_left);
      const int2 b_left = TRANSPOSED_B ? int2(n_left, k_left) : int2(k_left, n_left);
      stage_block<half, a_rows, a_columns>(block_a, a_tile, product.lda, a_left, int8_vector_a, int(thread_index));
      stage_block<half, b_rows, b_columns>(block_b, b_tile, product.ldb, b_left, int8_vector_b, int(thread_index));
      threadgroup_barrier(mem_flags::mem_threadgroup);
      multiply_blocks<half, TRANSPOSED_A, TRANSPOSED_B, tile_k>(
          acc, block_a, BlockA::pitch, block_b, BlockB::pitch, part_m, part_n
      );
      threadgroup_barrier(mem_flags::mem_threadgroup);
      a_tile += a_step;
      b_tile += b_step;
    }
  }
  add_to_totals(totals, acc);

  const Int8Sink<Out> sink = int8_sink(out, args, scale_a, scale_b, bias, group.z, m0 + part_m, n0 + part_n);
  threadgroup float* strip = reinterpret_cast<threadgroup float*>(memory) + int(simdgroup) * Strip::size;
  store_totals(sink, totals, strip, int2(m_left - part_m, n_left - part_n), int(lane));
}

#define instantiate_tile(layout, ta, tb, dtype, Out, M, N) \
  instantiate_kernel("int8_matmul_portable_" #layout "_" #dtype "_" #M "x" #N, int8_portable, Out, ta, tb, M, N)
#define instantiate_layouts(dtype, Out, M, N)                                                              \
  instantiate_tile(nn, false, false, dtype, Out, M, N) instantiate_tile(nt, false, true, dtype, Out, M, N) \
      instantiate_tile(tn, true, false, dtype, Out, M, N) instantiate_tile(tt, true, true, dtype, Out, M, N)
#define instantiate_dtype(dtype, Out)                                             \
  instantiate_layouts(dtype, Out, 64, 64) instantiate_layouts(dtype, Out, 32, 32) \
      instantiate_tile(nt, false, true, dtype, Out, 64, 32)

// clang-format off
instantiate_dtype(int32, int)
instantiate_dtype(float32, float)
instantiate_dtype(float16, half)
instantiate_dtype(bfloat16, bfloat)
