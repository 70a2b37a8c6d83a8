// out = activation(x W + bias) with packed weights, on the matrix units through MPP's matmul2d. Packings:
// common/dequantize.h. float32 x is truncated to tf32: exact float32 does not run on the matrix units.
//
// Direct, for few rows of x: weights are decoded into registers and never touch threadgroup memory.
//
//   for each 16 ROWS x 128 outputs, one threadgroup of 4 simdgroups that work apart, each on 32 columns:
//     sums[ROWS] = 0                          float32, of 16 x 32 outputs each
//     for k0 = 0, 16, 32, ... < K:
//       right = the decoded weights [k0 : k0 + 16, 32 columns], a right input cooperative tensor
//       for each 16 of the rows:
//         left = x[16 rows, k0 : k0 + 16], a left input cooperative tensor
//         sums += left x right              through a destination cooperative tensor
//     zeros stand past the edges of both: 0 x NaN would leak
//
// Staged, for more rows: a block of decoded weights in threadgroup memory serves 64 or 128 rows.
//
//   for each TILE_M x 64 outputs, one threadgroup of 4 simdgroups that act as one:
//     acc = 0                                 a float32 cooperative tensor over all 128 threads
//     for k0 = 0, 64, 128, ... < K:
//       stage the decoded weights [k0 : k0 + 64, 64 columns]
//       barrier
//       acc += x[tile rows, k0 : k0 + 64], read in place, x the staged block
//       barrier
//
// Weights are rounded to T once, where they are decoded. No layout of a cooperative tensor is assumed: slots say where
// they are, and four that turn out to be neighbours are decoded or loaded together. Views are built at their tile by
// 64-bit pointer arithmetic and end where the matrix does, as in matmul_tensorops.metal.
//
// Dimension 0 of a right input is the one that is contiguous in the operand it stands for: k when it is transposed. The
// packed values then run along dimension 0 both ways.
//
// Provenance: 16x32x16 is the shape of three cooperative operands that MLX's kernels use; 64 of K in a staged block,
// and its row padding of 16 bytes, are MLX's too (quantized_nax, BK = 64).

// clang-format off: the types first that MPP builds on
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
// clang-format on

#include "kernels/common/cooperative_slots.h"
#include "kernels/common/grid_walk.h"
#include "kernels/common/instantiate.h"
#include "kernels/common/matmul_sink.h"
#include "kernels/common/quantized_operands.h"

using namespace metal;

using mpp::tensor_ops::matmul2d;
using mpp::tensor_ops::matmul2d_descriptor;

// x as fill_cooperative reads it.
template <typename T>
struct PlainRows {
  device const T* data;
  int64_t stride;
  int rows;
  int columns;

  float4 load_four(int row, int column) const thread {
    const int count = row < rows ? columns - column : 0;
    device const T* p = data + (row * stride + column);
    return to_float4<T>(quantized_vector_x && count >= 4 ? load4(p) : load4(p, 1, count));
  }

  float load_one(int row, int column) const thread {
    return row < rows && column < columns ? float(data[row * stride + column]) : 0.0f;
  }
};

// Packed weights as fill_cooperative reads them. Columns are a multiple of 16.
template <typename T>
struct PackedRows {
  PackedMatrix<T> matrix;
  int rows;
  int columns;

  float4 load_four(int row, int column) const thread {
    return row < rows && column < columns ? load_four_weights(matrix, row, column) : float4(0.0f);
  }

  float load_one(int row, int column) const thread {
    return load_four(row, column / 4 * 4)[column % 4];
  }
};

template <typename T, bool TRANSPOSED, int ROWS>
[[kernel, max_total_threads_per_threadgroup(128)]] void quantized_direct(
    device const T* x [[buffer(0), function_constant(matmul_has_k)]],
    device const uint* w [[buffer(1), function_constant(matmul_has_k)]],
    device T* out [[buffer(2)]],
    constant QuantizedMatmulArgs& args [[buffer(3)]],
    device const uchar* scales [[buffer(4), function_constant(matmul_has_k)]],
    device const T* biases [[buffer(5), function_constant(quantized_has_biases)]],
    device const T* bias [[buffer(6), function_constant(matmul_has_bias)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]
) {
  constexpr int m = 16;
  constexpr int n = 32;
  constexpr int k = 16;
  constexpr auto mode = matmul2d_descriptor::mode::multiply_accumulate;
  constexpr auto descriptor = matmul2d_descriptor(m, n, k, false, TRANSPOSED, true, mode);
  matmul2d<descriptor, execution_simdgroup> op;
  auto left = op.template get_left_input_cooperative_tensor<T, T, float>();
  auto right = op.template get_right_input_cooperative_tensor<T, T, float>();
  auto acc = op.template get_destination_cooperative_tensor<
      remove_addrspace_t<decltype(left)>,
      remove_addrspace_t<decltype(right)>,
      float>();

  constant MatmulArgs& product = args.product;
  const GridTile tile = grid_tile(group.x, group.y, product.tiles_m, product.tiles_n, product.walk_width);
  const int m0 = tile.row * ROWS * m;
  const int n0 = tile.column * 4 * n + int(simdgroup) * n;
  if (!tile.inside || n0 >= product.N) {
    return;
  }
  float sums[ROWS][cooperative_slots];
#pragma clang loop unroll(full)
  for (int i = 0; i < ROWS; ++i) {
#pragma clang loop unroll(full)
    for (ushort j = 0; j < cooperative_slots; ++j) {
      sums[i][j] = 0.0f;
    }
  }

  if (matmul_has_k) {
    PackedRows<T> weights;
    weights.matrix = packed_matrix(w, scales, biases, args, group.z);
    weights.rows = TRANSPOSED ? product.N : product.K;
    weights.columns = TRANSPOSED ? product.K : product.N;
    PlainRows<T> rows;
    rows.data = x + matmul_batch_offset(group.z, product, product.a_batch_strides);
    rows.stride = product.lda;
    rows.rows = product.M;
    rows.columns = product.K;

    for (int k0 = 0; k0 < product.K; k0 += k) {
      fill_cooperative<T>(right, weights, TRANSPOSED ? n0 : k0, TRANSPOSED ? k0 : n0);
#pragma clang loop unroll(full)
      for (int i = 0; i < ROWS; ++i) {
        fill_cooperative<T>(left, rows, m0 + i * m, k0);
        set_slots(acc, sums[i]);
        op.run(left, right, acc);
#pragma clang loop unroll(full)
        for (ushort j = 0; j < cooperative_slots; ++j) {
          sums[i][j] = acc[j];
        }
      }
    }
  }

  const MatmulAddends<T> addends = addends_of(bias, product, group.z);
  device T* out_matrix = out + int64_t(group.z) * product.M * product.N;
#pragma clang loop unroll(full)
  for (int i = 0; i < ROWS; ++i) {
    set_slots(acc, sums[i]);
    store_cooperative(out_matrix, product, addends, acc, m0 + i * m, n0);
  }
}

template <typename T, bool TRANSPOSED, int TILE_M>
[[kernel, max_total_threads_per_threadgroup(128)]] void quantized_staged(
    device T* x [[buffer(0), function_constant(matmul_has_k)]],
    device const uint* w [[buffer(1), function_constant(matmul_has_k)]],
    device T* out [[buffer(2)]],
    constant QuantizedMatmulArgs& args [[buffer(3)]],
    device const uchar* scales [[buffer(4), function_constant(matmul_has_k)]],
    device const T* biases [[buffer(5), function_constant(quantized_has_biases)]],
    device const T* bias [[buffer(6), function_constant(matmul_has_bias)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]]
) {
  constexpr int tile_n = 64;
  constexpr int tile_k = 64;
  constexpr int w_rows = TRANSPOSED ? tile_n : tile_k;
  constexpr int w_columns = TRANSPOSED ? tile_k : tile_n;
  using Block = StagedBlock<T, w_rows, w_columns>;
  using WeightsView = tensor<threadgroup T, dextents<int, 2>, tensor_inline>;
  threadgroup float4 memory[Block::size * sizeof(T) / sizeof(float4)];

  constant MatmulArgs& product = args.product;
  const GridTile tile = grid_tile(group.x, group.y, product.tiles_m, product.tiles_n, product.walk_width);
  if (!tile.inside) {
    return;
  }
  const int m0 = tile.row * TILE_M;
  const int n0 = tile.column * tile_n;
  const int m_left = min(product.M - m0, TILE_M);
  const int n_left = min(product.N - n0, tile_n);

  constexpr auto mode = matmul2d_descriptor::mode::multiply_accumulate;
  constexpr int dynamic_k = mpp::tensor_ops::dynamic_length_v<int>;
  constexpr auto descriptor = matmul2d_descriptor(TILE_M, tile_n, dynamic_k, false, TRANSPOSED, true, mode);
  matmul2d<descriptor, execution_simdgroups<4>> op;
  auto acc = op.template get_destination_cooperative_tensor<MatmulView<T>, WeightsView, float>();
#pragma clang loop unroll(full)
  for (ushort i = 0; i < acc.get_capacity(); ++i) {
    acc[i] = 0.0f;
  }

  if (matmul_has_k) {
    threadgroup T* block = reinterpret_cast<threadgroup T*>(memory);
    const PackedMatrix<T> weights = packed_matrix(w, scales, biases, args, group.z);
    device T* x_tile = x + (matmul_batch_offset(group.z, product, product.a_batch_strides) + m0 * product.lda);
    for (int k0 = 0; k0 < product.K; k0 += tile_k) {
      const int k_left = min(product.K - k0, tile_k);
      const int row = TRANSPOSED ? n0 : k0;
      const int column = TRANSPOSED ? k0 : n0;
      const int2 left = TRANSPOSED ? int2(n_left, k_left) : int2(k_left, n_left);
      stage_weights<T, w_rows, w_columns>(block, weights, row, column, left, int(thread_index));
      threadgroup_barrier(mem_flags::mem_threadgroup);
      MatmulView<T> x_view = matmul_view(x_tile + k0, m_left, k_left, product.lda);
      WeightsView w_view(block, dextents<int, 2>(left.y, left.x), array<int, 2>{1, Block::pitch});
      op.run(x_view, w_view, acc);
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
  }

  const MatmulAddends<T> addends = addends_of(bias, product, group.z);
  store_cooperative(out + int64_t(group.z) * product.M * product.N, product, addends, acc, m0, n0);
}

#define instantiate_direct(layout, transposed, dtype, T, rows)                                                   \
  instantiate_kernel(                                                                                            \
      "quantized_matmul_direct_" #layout "_" #dtype "_" #rows "x128", quantized_direct, T, transposed, rows / 16 \
  )
#define instantiate_staged(layout, transposed, dtype, T, rows)                                             \
  instantiate_kernel(                                                                                      \
      "quantized_matmul_staged_" #layout "_" #dtype "_" #rows "x64", quantized_staged, T, transposed, rows \
  )
#define instantiate_layout(layout, transposed, dtype, T)                                                    \
  instantiate_direct(layout, transposed, dtype, T, 32) instantiate_direct(layout, transposed, dtype, T, 64) \
      instantiate_staged(layout, transposed, dtype, T, 64) instantiate_staged(layout, transposed, dtype, T, 128)
#define instantiate_dtype(dtype, T) instantiate_layout(nt, true, dtype, T) instantiate_layout(nn, false, dtype, T)

// clang-format off
instantiate_dtype(float32, float)
instantiate_dtype(float16, half)
instantiate_dtype(bfloat16, bfloat)
