// out = a b exactly in int32, or activation(a b scale_a scale_b + bias): int8 operands on the matrix units, whose sums
// are int32.
//
// The loop is that of matmul_tensorops.metal, where its reasons are told. The host sees to it that no sum can overflow.

// clang-format off: the types first that MPP builds on
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
// clang-format on

#include "kernels/common/cooperative.h"
#include "kernels/common/grid_walk.h"
#include "kernels/common/instantiate.h"
#include "kernels/common/int8_epilogue.h"

using namespace metal;

constant constexpr int block_k = 256;

template <typename Out, bool TRANSPOSED_A, bool TRANSPOSED_B, int TILE_M, int TILE_N>
[[kernel, max_total_threads_per_threadgroup(128)]] void int8_tensorops(
    device int8_t* a [[buffer(0), function_constant(matmul_has_k)]],
    device int8_t* b [[buffer(1), function_constant(matmul_has_k)]],
    device Out* out [[buffer(2)]],
    constant Int8MatmulArgs& args [[buffer(3)]],
    device const float* scale_a [[buffer(4), function_constant(int8_has_scale_a)]],
    device const float* bias [[buffer(5), function_constant(matmul_has_bias)]],
    device const float* scale_b [[buffer(6), function_constant(int8_has_scale_b)]],
    uint3 group [[threadgroup_position_in_grid]]
) {
  constant MatmulArgs& product = args.product;
  const GridTile tile = grid_tile(group.x, group.y, product.tiles_m, product.tiles_n, product.walk_width);
  if (!tile.inside) {
    return;
  }
  const int m0 = tile.row * TILE_M;
  const int n0 = tile.column * TILE_N;
  const int m_left = min(product.M - m0, TILE_M);
  const int n_left = min(product.N - n0, TILE_N);

  using View = MatmulView<int8_t>;
  constexpr auto descriptor = mpp::tensor_ops::matmul2d_descriptor(
      TILE_M,
      TILE_N,
      mpp::tensor_ops::dynamic_length_v<int>,
      TRANSPOSED_A,
      TRANSPOSED_B,
      false,
      mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate
  );
  mpp::tensor_ops::matmul2d<descriptor, execution_simdgroups<4>> op;
  auto acc = op.template get_destination_cooperative_tensor<View, View, int>();
#pragma clang loop unroll(full)
  for (ushort i = 0; i < acc.get_capacity(); ++i) {
    acc[i] = 0;
  }

  if (matmul_has_k) {
    device int8_t* a_tile = a + (matmul_batch_offset(group.z, product, product.a_batch_strides) +
                                 (TRANSPOSED_A ? int64_t(m0) : m0 * product.lda));
    device int8_t* b_tile = b + (matmul_batch_offset(group.z, product, product.b_batch_strides) +
                                 (TRANSPOSED_B ? n0 * product.ldb : int64_t(n0)));
    const int64_t a_step = TRANSPOSED_A ? block_k * product.lda : int64_t(block_k);
    const int64_t b_step = TRANSPOSED_B ? int64_t(block_k) : block_k * product.ldb;

    for (int k_left = product.K; k_left > 0; k_left -= block_k) {
      const int k = min(k_left, block_k);
      View a_view = matmul_view(a_tile, TRANSPOSED_A ? k : m_left, TRANSPOSED_A ? m_left : k, product.lda);
      View b_view = matmul_view(b_tile, TRANSPOSED_B ? n_left : k, TRANSPOSED_B ? k : n_left, product.ldb);
      op.run(a_view, b_view, acc);
      threadgroup_barrier(mem_flags::mem_none);
      a_tile += a_step;
      b_tile += b_step;
    }
  }

  const Int8Sink<Out> sink = int8_sink(out, args, scale_a, scale_b, bias, group.z, m0, n0);
  store_slots(sink, acc, m_left, n_left);
}

#define instantiate_tile(layout, ta, tb, dtype, Out, M, N) \
  instantiate_kernel("int8_matmul_tensorops_" #layout "_" #dtype "_" #M "x" #N, int8_tensorops, Out, ta, tb, M, N)
#define instantiate_layout(layout, ta, tb, dtype, Out)                                                        \
  instantiate_tile(layout, ta, tb, dtype, Out, 128, 64) instantiate_tile(layout, ta, tb, dtype, Out, 64, 128) \
      instantiate_tile(layout, ta, tb, dtype, Out, 64, 64)
#define instantiate_dtype(dtype, Out)                                                              \
  instantiate_layout(nn, false, false, dtype, Out) instantiate_layout(nt, false, true, dtype, Out) \
      instantiate_layout(tn, true, false, dtype, Out) instantiate_layout(tt, true, true, dtype, Out)

// clang-format off
instantiate_dtype(int32, int)
instantiate_dtype(float32, float)
instantiate_dtype(float16, half)
instantiate_dtype(bfloat16, bfloat)
