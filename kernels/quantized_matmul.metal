// out = activation(x W + bias) with packed weights, on every Apple silicon GPU. Packings: common/dequantize.h.
//
// Vector kernels, for few rows of x, pass over the weights once.
//
//   nt, W the transpose of packed [N, K]: each simdgroup has a few columns of the output and all rows of x
//     for octet = lane, lane + 32, ... < K / 8:
//       w = octet of each column, decoded
//       for each row m: sums[m, column] += x[m, octet] . w
//     sums over the lanes; lane i finishes and stores one element
//
//   nn, packed [K, N]: each threadgroup has 64 columns, each thread 8 of them and every 16th k
//     for k = first, first + 16, ... < K: sums[m, its 8 columns] += x[m, k] w[k, its 8 columns]
//     sums over the threads of a column, by shuffles and then through threadgroup memory, in fixed order
//
// Tiled kernels, for more rows, are those of matmul.metal with decoded weights in the place of b:
//
//   for each tile of TILE_M x TILE_N outputs, one threadgroup of 4 simdgroups, 2 x 2 over the tile:
//     for k0 = 0, 32, 64, ... < K:
//       stage x[tile rows, k0 : k0 + 32] and the decoded weights of the tile's columns, zeros past the edges
//       acc += x W of the staged blocks, on simdgroup_matrix
//
// Weights are rounded to T where they are staged, once; the vector kernels keep them in float32.
//
// Provenance: the packings are MLX's (mx.quantize), mxfp4 and mxfp8 those of the OCP Microscaling specification.
// Columns of a simdgroup and rows of x are chosen so that one has 32 sums at most and a lane stores one element at
// most; 32 of K is the least group but nvfp4's, of which a tail of 16 is left.

// clang-format off: the types first that simdgroup_matrix builds on
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
// clang-format on

#include "kernels/common/grid_walk.h"
#include "kernels/common/instantiate.h"
#include "kernels/common/quantized_operands.h"
#include "kernels/common/simdgroup_blocks.h"

using namespace metal;

constant constexpr int simd_width = 32;

template <typename T>
inline float4 load_x(device const T* p) {
  return to_float4<T>(quantized_vector_x ? load4(p) : load4(p, 1, 4));
}

template <typename T, int ROWS, int COLUMNS>
[[kernel, max_total_threads_per_threadgroup(64)]] void quantized_vector_nt(
    device const T* x [[buffer(0), function_constant(matmul_has_k)]],
    device const uint* w [[buffer(1), function_constant(matmul_has_k)]],
    device T* out [[buffer(2)]],
    constant QuantizedMatmulArgs& args [[buffer(3)]],
    device const uchar* scales [[buffer(4), function_constant(matmul_has_k)]],
    device const T* biases [[buffer(5), function_constant(quantized_has_biases)]],
    device const T* bias [[buffer(6), function_constant(matmul_has_bias)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane_index [[thread_index_in_simdgroup]]
) {
  static_assert(ROWS * COLUMNS <= simd_width, "a lane stores one element at most");
  constant MatmulArgs& product = args.product;
  const int lane = int(lane_index);
  const int n0 = (int(group.x) * 2 + int(simdgroup)) * COLUMNS;
  if (n0 >= product.N) {
    return;
  }
  float sums[ROWS][COLUMNS];
#pragma clang loop unroll(full)
  for (int m = 0; m < ROWS; ++m) {
#pragma clang loop unroll(full)
    for (int j = 0; j < COLUMNS; ++j) {
      sums[m][j] = 0.0f;
    }
  }

  if (matmul_has_k) {
    const PackedMatrix<T> weights = packed_matrix(w, scales, biases, args, group.z);
    device const T* x_matrix = x + matmul_batch_offset(group.z, product, product.a_batch_strides);
    for (int k = lane * octet_size; k < product.K; k += simd_width * octet_size) {
      Octet octets[COLUMNS];
#pragma clang loop unroll(full)
      for (int j = 0; j < COLUMNS; ++j) {
        octets[j] = load_weights(weights, min(n0 + j, product.N - 1), k);
      }
#pragma clang loop unroll(full)
      for (int m = 0; m < ROWS; ++m) {
        device const T* p = x_matrix + (min(m, product.M - 1) * product.lda + k);
        const float4 low = load_x(p);
        const float4 high = load_x(p + 4);
#pragma clang loop unroll(full)
        for (int j = 0; j < COLUMNS; ++j) {
          sums[m][j] += dot(low, octets[j].low) + dot(high, octets[j].high);
        }
      }
    }
  }

  float own_sum = 0.0f;
#pragma clang loop unroll(full)
  for (int m = 0; m < ROWS; ++m) {
#pragma clang loop unroll(full)
    for (int j = 0; j < COLUMNS; ++j) {
      const float sum = simd_sum(sums[m][j]);
      own_sum = lane == m * COLUMNS + j ? sum : own_sum;
    }
  }
  const int m = lane / COLUMNS;
  const int n = n0 + lane % COLUMNS;
  if (lane < ROWS * COLUMNS && m < product.M && n < product.N) {
    const MatmulAddends<T> addends = addends_of(bias, product, group.z);
    matmul_store1(out + int64_t(group.z) * product.M * product.N, product, addends, own_sum, m, n);
  }
}

// Adds the lanes of a simdgroup whose numbers differ in bits 3 and 4.
inline float4 sum_over_k_lanes(float4 x) {
  x += simd_shuffle_xor(x, ushort(8));
  x += simd_shuffle_xor(x, ushort(16));
  return x;
}

template <typename T, int ROWS>
[[kernel, max_total_threads_per_threadgroup(128)]] void quantized_vector_nn(
    device const T* x [[buffer(0), function_constant(matmul_has_k)]],
    device const uint* w [[buffer(1), function_constant(matmul_has_k)]],
    device T* out [[buffer(2)]],
    constant QuantizedMatmulArgs& args [[buffer(3)]],
    device const uchar* scales [[buffer(4), function_constant(matmul_has_k)]],
    device const T* biases [[buffer(5), function_constant(quantized_has_biases)]],
    device const T* bias [[buffer(6), function_constant(matmul_has_bias)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]
) {
  constexpr int columns = 64;
  constexpr int quads = columns / 4;
  constexpr int simdgroups = 4;
  constexpr int k_step = simdgroups * 4;
  threadgroup float4 partial_sums[simdgroups][ROWS][quads];

  constant MatmulArgs& product = args.product;
  const int n0 = int(group.x) * columns;
  const int octet = int(lane % 8);
  const int n = n0 + octet * octet_size;
  Octet sums[ROWS];
#pragma clang loop unroll(full)
  for (int m = 0; m < ROWS; ++m) {
    sums[m] = {float4(0.0f), float4(0.0f)};
  }

  if (matmul_has_k && n < product.N) {
    const PackedMatrix<T> weights = packed_matrix(w, scales, biases, args, group.z);
    device const T* x_matrix = x + matmul_batch_offset(group.z, product, product.a_batch_strides);
    for (int k = int(simdgroup * 4 + lane / 8); k < product.K; k += k_step) {
      const Octet weight = load_weights(weights, k, n);
#pragma clang loop unroll(full)
      for (int m = 0; m < ROWS; ++m) {
        const float factor = float(x_matrix[min(m, product.M - 1) * product.lda + k]);
        sums[m].low += factor * weight.low;
        sums[m].high += factor * weight.high;
      }
    }
  }

#pragma clang loop unroll(full)
  for (int m = 0; m < ROWS; ++m) {
    const float4 low = sum_over_k_lanes(sums[m].low);
    const float4 high = sum_over_k_lanes(sums[m].high);
    if (lane < 8) {
      partial_sums[simdgroup][m][2 * octet] = low;
      partial_sums[simdgroup][m][2 * octet + 1] = high;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  const int m = int(thread_index) / quads;
  const int quad = int(thread_index) % quads;
  const int column = n0 + quad * 4;
  if (m < min(ROWS, product.M) && column < product.N) {
    float4 sum = partial_sums[0][m][quad];
    for (int s = 1; s < simdgroups; ++s) {
      sum += partial_sums[s][m][quad];
    }
    const MatmulAddends<T> addends = addends_of(bias, product, group.z);
    device T* out_matrix = out + int64_t(group.z) * product.M * product.N;
    matmul_store4(out_matrix, product, addends, sum, m, column, product.N - column);
  }
}

template <typename T, bool TRANSPOSED, int TILE_M, int TILE_N>
[[kernel, max_total_threads_per_threadgroup(128)]] void quantized_portable(
    device const T* x [[buffer(0), function_constant(matmul_has_k)]],
    device const uint* w [[buffer(1), function_constant(matmul_has_k)]],
    device T* out [[buffer(2)]],
    constant QuantizedMatmulArgs& args [[buffer(3)]],
    device const uchar* scales [[buffer(4), function_constant(matmul_has_k)]],
    device const T* biases [[buffer(5), function_constant(quantized_has_biases)]],
    device const T* bias [[buffer(6), function_constant(matmul_has_bias)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]
) {
  constexpr int tile_k = 32;
  constexpr int fragments_m = TILE_M / 2 / fragment_size; // of one simdgroup
  constexpr int fragments_n = TILE_N / 2 / fragment_size;
  constexpr int w_rows = TRANSPOSED ? TILE_N : tile_k;
  constexpr int w_columns = TRANSPOSED ? tile_k : TILE_N;
  using BlockX = StagedBlock<T, TILE_M, tile_k>;
  using BlockW = StagedBlock<T, w_rows, w_columns>;
  using Strip = StagedBlock<float, fragment_size, TILE_N / 2>;

  // The strips of the epilogue take the place of the staged blocks.
  constexpr int memory_size = (BlockX::size + BlockW::size) * sizeof(T) / sizeof(float4);
  static_assert(4 * Strip::size * sizeof(float) <= memory_size * sizeof(float4), "a strip for each simdgroup");
  static_assert(memory_size * sizeof(float4) <= 32768, "threadgroup memory of every Apple GPU");
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
#pragma clang loop unroll(full)
  for (int i = 0; i < fragments_m; ++i) {
#pragma clang loop unroll(full)
    for (int j = 0; j < fragments_n; ++j) {
      acc[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
  }

  if (matmul_has_k) {
    threadgroup T* block_x = reinterpret_cast<threadgroup T*>(memory);
    threadgroup T* block_w = block_x + BlockX::size;
    const PackedMatrix<T> weights = packed_matrix(w, scales, biases, args, group.z);
    device const T* x_tile = x + (matmul_batch_offset(group.z, product, product.a_batch_strides) + m0 * product.lda);

    for (int k = 0; k < product.K; k += tile_k) {
      const int k_left = product.K - k;
      stage_block<T, TILE_M, tile_k>(
          block_x, x_tile + k, product.lda, int2(m_left, k_left), quantized_vector_x, int(thread_index)
      );
      stage_weights<T, w_rows, w_columns>(
          block_w,
          weights,
          TRANSPOSED ? n0 : k,
          TRANSPOSED ? k : n0,
          TRANSPOSED ? int2(n_left, k_left) : int2(k_left, n_left),
          int(thread_index)
      );
      threadgroup_barrier(mem_flags::mem_threadgroup);
      multiply_blocks<T, false, TRANSPOSED, tile_k>(
          acc, block_x, BlockX::pitch, block_w, BlockW::pitch, part_m, part_n
      );
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
  }

  const MatmulAddends<T> addends = addends_of(bias, product, group.z);
  device T* out_matrix = out + int64_t(group.z) * product.M * product.N;
  threadgroup float* strip = reinterpret_cast<threadgroup float*>(memory) + int(simdgroup) * Strip::size;
  store_fragments(out_matrix, product, addends, acc, strip, int2(m_left - part_m, n_left - part_n), int(lane));
}

#define instantiate_vector_nt(dtype, T, rows, columns) \
  instantiate_kernel("quantized_matmul_vector_nt_" #dtype "_" #rows, quantized_vector_nt, T, rows, columns)
#define instantiate_vector_nn(dtype, T, rows) \
  instantiate_kernel("quantized_matmul_vector_nn_" #dtype "_" #rows, quantized_vector_nn, T, rows)
#define instantiate_tile(layout, transposed, dtype, T, M, N)                                                 \
  instantiate_kernel(                                                                                        \
      "quantized_matmul_portable_" #layout "_" #dtype "_" #M "x" #N, quantized_portable, T, transposed, M, N \
  )
#define instantiate_tiles(dtype, T)                                                              \
  instantiate_tile(nt, true, dtype, T, 64, 64) instantiate_tile(nt, true, dtype, T, 64, 32)      \
      instantiate_tile(nt, true, dtype, T, 32, 32) instantiate_tile(nn, false, dtype, T, 64, 64) \
          instantiate_tile(nn, false, dtype, T, 32, 32)
#define instantiate_dtype(dtype, T)                                                                                    \
  instantiate_vector_nt(dtype, T, 1, 4) instantiate_vector_nt(dtype, T, 2, 4) instantiate_vector_nt(dtype, T, 4, 4)    \
      instantiate_vector_nt(dtype, T, 8, 2) instantiate_vector_nt(dtype, T, 16, 2)                                     \
          instantiate_vector_nt(dtype, T, 32, 1) instantiate_vector_nn(dtype, T, 1) instantiate_vector_nn(dtype, T, 4) \
              instantiate_tiles(dtype, T)

// clang-format off
instantiate_dtype(float32, float)
instantiate_dtype(float16, half)
instantiate_dtype(bfloat16, bfloat)
