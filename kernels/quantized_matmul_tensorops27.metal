// out = activation(x W^T + bias) for half x and weights in mxfp8 or mxfp4, which matmul2d of macOS 27 decodes itself.
//
//   for each tile of TILE_M x TILE_N outputs, one threadgroup of 4 simdgroups that act as one:
//     acc = 0                                a float32 cooperative tensor over all 128 threads
//     acc += x[tile rows, :] x W[tile columns, :]^T, W with its plane of scales, one for each 32 along K
//     for each slot of acc, where it says it is: finish (common/matmul_epilogue.h) and store
//
// The scales of a view lie K / 32 to a row, hence the view spans all of K and there is one run, not a loop over K.
// A scaled right operand must be transposed, its element format stands beside half only, and scales are e8m0 in blocks
// of 32: that is mxfp8 and mxfp4. Their code 255 is NaN here and infinity in MLX; mx.quantize never writes it.
//
// Provenance: the WWDC26 session on Metal tensors; tiles as in matmul_tensorops.metal.

// clang-format off: the types first that MPP builds on
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
// clang-format on

#include "kernels/args/quantized_matmul.h"
#include "kernels/common/grid_walk.h"
#include "kernels/common/instantiate.h"
#include "kernels/common/matmul_sink.h"

using namespace metal;

using Scales = tensor_blockwise<tensor_plane_scales, device metal_fp8_ue8m0_format, 32, 1>;

template <typename Format>
using ScaledView = tensor<device Format, dextents<int, 2>, tensor_inline, Scales>;

template <typename Format, int TILE_M, int TILE_N>
[[kernel, max_total_threads_per_threadgroup(128)]] void quantized_native(
    device half* x [[buffer(0)]],
    device uchar* w [[buffer(1)]],
    device half* out [[buffer(2)]],
    constant QuantizedMatmulArgs& args [[buffer(3)]],
    device uchar* scales [[buffer(4)]],
    device const half* bias [[buffer(6), function_constant(matmul_has_bias)]],
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

  using mpp::tensor_ops::matmul2d_descriptor;
  constexpr auto mode = matmul2d_descriptor::mode::multiply_accumulate;
  constexpr int dynamic_k = mpp::tensor_ops::dynamic_length_v<int>;
  constexpr auto descriptor = matmul2d_descriptor(TILE_M, TILE_N, dynamic_k, false, true, true, mode);
  mpp::tensor_ops::matmul2d<descriptor, execution_simdgroups<4>> op;
  auto acc = op.template get_destination_cooperative_tensor<MatmulView<half>, ScaledView<Format>, float>();
#pragma clang loop unroll(full)
  for (ushort i = 0; i < acc.get_capacity(); ++i) {
    acc[i] = 0.0f;
  }

  device half* x_tile = x + (matmul_batch_offset(group.z, product, product.a_batch_strides) + m0 * product.lda);
  const int64_t words = matmul_batch_offset(group.z, product, product.b_batch_strides) + n0 * product.ldb;
  const int64_t first_scale = matmul_batch_offset(group.z, product, args.scales_batch_strides) + n0 * args.ld_scales;
  MatmulView<half> x_view = matmul_view(x_tile, m_left, product.K, product.lda);
  ScaledView<Format> w_view(
      w + words * int(sizeof(uint)),
      dextents<int, 2>(product.K, n_left),
      array<int, 2>{1, product.K},
      Scales(scales + first_scale)
  );
  op.run(x_view, w_view, acc);

  MatmulAddends<half> addends;
  if (matmul_has_bias) {
    addends.bias = bias + matmul_batch_offset(group.z, product, product.bias.batch_strides);
  }
  store_cooperative(out + int64_t(group.z) * product.M * product.N, product, addends, acc, m0, n0);
}

// clang-format off
instantiate_kernel("quantized_matmul_mxfp4_float16_128x64", quantized_native, metal_fp4_e2m1_format, 128, 64)
instantiate_kernel("quantized_matmul_mxfp4_float16_64x64", quantized_native, metal_fp4_e2m1_format, 64, 64)
instantiate_kernel("quantized_matmul_mxfp8_float16_128x64", quantized_native, metal_fp8_e4m3_format, 128, 64)
instantiate_kernel("quantized_matmul_mxfp8_float16_64x64", quantized_native, metal_fp8_e4m3_format, 64, 64)
