// out = activation(alpha a b + beta c + bias) + residual, on the matrix units through MPP's matmul2d.
//
//   for each tile of TILE_M x TILE_N outputs, one threadgroup of 4 simdgroups that act as one:
//     acc = 0                                       float32, a cooperative tensor over all 128 threads
//     for k0 = 0, BLOCK_K, 2 BLOCK_K, ... < K:
//       acc += a[tile rows, k0 : k0 + BLOCK_K] x b[k0 : k0 + BLOCK_K, tile columns]
//       barrier that orders no memory: it keeps the simdgroups together, so that they share what the cache holds
//     for each slot of acc, where it says it is: finish (common/matmul_epilogue.h) and store
//
// Operands are read in place: matmul2d needs no staging. Each view is built at its tile by 64-bit pointer arithmetic
// (slices 2 GB or more from their base address wrongly: llama.cpp issue 28748), and its extents are what is left of
// the matrix, M and N up to one tile, K up to one block: reads past them are masked. No extent is static, for a static
// K that runs past the end reads garbage (llama.cpp issue 27450).
//
// The layout of a cooperative tensor over several simdgroups is not specified. Stores go by coordinates, which also
// serves float16 and bfloat16 (a cooperative store converts nothing) and outputs of any alignment; four slots that
// turn out to be neighbours in a row are stored as a vector.
//
// A long K may be split: each threadgroup sums one partition of K, z of the grid telling which (common/partition.h),
// and stores float32 sums, which matmul_reduce of matmul.metal adds in order.
//
// Provenance: tile sizes from tessl's and MLX's published tuning (csrc/launch/gemm_tiles.cpp); BLOCK_K and the barrier
// from MLX's gemm_loop (bk = 256 on the larger parts), the reason for the barrier from Apple's Tech Talk 111432.

// clang-format off: the types first that MPP builds on
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
// clang-format on

#include "kernels/common/grid_walk.h"
#include "kernels/common/instantiate.h"
#include "kernels/common/matmul_sink.h"
#include "kernels/common/partition.h"

using namespace metal;

constant constexpr int matmul_block_k = 256;

template <typename T, typename Out, bool TRANSPOSED_A, bool TRANSPOSED_B, bool RELAXED, int TILE_M, int TILE_N>
[[kernel, max_total_threads_per_threadgroup(128)]] void matmul_tensorops(
    device T* a [[buffer(0), function_constant(matmul_has_k)]],
    device T* b [[buffer(1), function_constant(matmul_has_k)]],
    device Out* out [[buffer(2)]],
    constant MatmulArgs& args [[buffer(3)]],
    device const Out* c [[buffer(4), function_constant(matmul_has_c)]],
    device const Out* bias [[buffer(5), function_constant(matmul_has_bias)]],
    device const Out* residual [[buffer(6), function_constant(matmul_has_residual)]],
    uint3 group [[threadgroup_position_in_grid]]
) {
  const GridTile tile = grid_tile(group.x, group.y, args.tiles_m, args.tiles_n, args.walk_width);
  if (!tile.inside) {
    return;
  }
  const MatmulPart part = matmul_part(group.z, args);
  const int m0 = tile.row * TILE_M;
  const int n0 = tile.column * TILE_N;
  const int m_left = min(args.M - m0, TILE_M);
  const int n_left = min(args.N - n0, TILE_N);

  // Views are named by type rather than decltype of a variable: the getter wants a type without an address space.
  constexpr auto descriptor = mpp::tensor_ops::matmul2d_descriptor(
      TILE_M,
      TILE_N,
      mpp::tensor_ops::dynamic_length_v<int>,
      TRANSPOSED_A,
      TRANSPOSED_B,
      RELAXED,
      mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate
  );
  mpp::tensor_ops::matmul2d<descriptor, execution_simdgroups<4>> op;
  auto acc = op.template get_destination_cooperative_tensor<MatmulView<T>, MatmulView<T>, float>();
#pragma clang loop unroll(full)
  for (ushort i = 0; i < acc.get_capacity(); ++i) {
    acc[i] = 0.0f;
  }

  if (matmul_has_k) {
    device T* a_tile = a + (matmul_batch_offset(part.member, args, args.a_batch_strides) +
                            (TRANSPOSED_A ? m0 + part.first * args.lda : m0 * args.lda + part.first));
    device T* b_tile = b + (matmul_batch_offset(part.member, args, args.b_batch_strides) +
                            (TRANSPOSED_B ? n0 * args.ldb + part.first : n0 + part.first * args.ldb));
    const int64_t a_step = TRANSPOSED_A ? matmul_block_k * args.lda : int64_t(matmul_block_k);
    const int64_t b_step = TRANSPOSED_B ? int64_t(matmul_block_k) : matmul_block_k * args.ldb;

    for (int k_left = part.k; k_left > 0; k_left -= matmul_block_k) {
      const int k = min(k_left, matmul_block_k);
      MatmulView<T> a_view = matmul_view(a_tile, TRANSPOSED_A ? k : m_left, TRANSPOSED_A ? m_left : k, args.lda);
      MatmulView<T> b_view = matmul_view(b_tile, TRANSPOSED_B ? n_left : k, TRANSPOSED_B ? k : n_left, args.ldb);
      op.run(a_view, b_view, acc);
      threadgroup_barrier(mem_flags::mem_none);
      a_tile += a_step;
      b_tile += b_step;
    }
  }

  const MatmulAddends<Out> addends = matmul_addends(c, bias, residual, args, part.member);
  device Out* out_matrix = matmul_matrix_of(out, group.z, args);

  store_cooperative(out_matrix, args, addends, acc, m0, n0);
}

#define instantiate_tile(layout, ta, tb, dtype, T, Out, relaxed, M, N)                                      \
  instantiate_kernel(                                                                                       \
      "matmul_tensorops_" #layout "_" #dtype "_" #M "x" #N, matmul_tensorops, T, Out, ta, tb, relaxed, M, N \
  )
#define instantiate_layouts(dtype, T, Out, relaxed, M, N)                 \
  instantiate_tile(nn, false, false, dtype, T, Out, relaxed, M, N)        \
      instantiate_tile(nt, false, true, dtype, T, Out, relaxed, M, N)     \
          instantiate_tile(tn, true, false, dtype, T, Out, relaxed, M, N) \
              instantiate_tile(tt, true, true, dtype, T, Out, relaxed, M, N)
#define instantiate_tiles(dtype, T, Out)                                                              \
  instantiate_layouts(dtype, T, Out, true, 128, 64) instantiate_layouts(dtype, T, Out, true, 64, 128) \
      instantiate_layouts(dtype, T, Out, true, 64, 64)

// Relaxed float32 truncates operands to tf32 and runs on the matrix units; exact float32 does not. The 16-bit types
// are on them either way, and relaxed as in MLX's kernels. The _sums kernels store float32: partitions of K.
// clang-format off
instantiate_layouts(float32, float, float, false, 64, 64)
instantiate_tiles(float32_relaxed, float, float)
instantiate_tiles(float16, half, half)
instantiate_tiles(float16_sums, half, float)
instantiate_tiles(bfloat16, bfloat, bfloat)
instantiate_tiles(bfloat16_sums, bfloat, float)
