// out[row, word] = max or sum over the row's tokens of f(hidden[row, token] . weight[word] + bias[word]), on the matrix
// units through MPP's matmul2d. f and the pooling: common/token_pool.h. No logit leaves the threadgroup.
//
//   for each row and tile of 64 words, one threadgroup of 4 simdgroups that act as one:
//     for each tile of 64 of the row's tokens:
//       acc = hidden[tokens] weight[words]^T          as matmul_tensorops.metal's nt, operands read in place
//       each slot of acc goes to threadgroup memory, where it says it is
//       barrier
//       two threads a word pool the tile's logits, token after token
//       barrier
//     both threads' shares together, f of a maximum, one store
//
// Views, the length of a block of units and the barrier between them are those of matmul_tensorops.metal.

// clang-format off: the types first that MPP builds on
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
// clang-format on

#include "kernels/common/cooperative.h"
#include "kernels/common/instantiate.h"
#include "kernels/common/staged_block.h"
#include "kernels/common/token_pool.h"

using namespace metal;

constant constexpr int sparse_block_k = 256;
constant constexpr int sparse_tile_tokens = 64;

template <typename T, bool RELAXED>
[[kernel, max_total_threads_per_threadgroup(128)]] void sparse_max_pool_tensorops(
    device T* hidden [[buffer(0), function_constant(sparse_has_tokens)]],
    device T* weight [[buffer(1), function_constant(sparse_has_tokens)]],
    device T* out [[buffer(2)]],
    constant SparseMaxPoolArgs& args [[buffer(3)]],
    device const int* lengths [[buffer(4), function_constant(sparse_has_lengths)]],
    device const T* bias [[buffer(5), function_constant(sparse_has_bias)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]]
) {
  using Logits = StagedBlock<float, sparse_tile_tokens, pool_words>;
  threadgroup float logits[Logits::size];

  constexpr auto descriptor = mpp::tensor_ops::matmul2d_descriptor(
      sparse_tile_tokens,
      pool_words,
      mpp::tensor_ops::dynamic_length_v<int>,
      false,
      true,
      RELAXED,
      mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate
  );
  mpp::tensor_ops::matmul2d<descriptor, execution_simdgroups<4>> op;

  const int first_word = int(group.x) * pool_words;
  const int words_left = min(args.words - first_word, pool_words);
  const int length = sparse_has_tokens ? pool_length(lengths, args, group.y) : 0;
  TokenPool pool = token_pool<T>(bias, args, first_word, words_left, int(thread_index));

  for (int token = 0; token < length; token += sparse_tile_tokens) {
    const int tokens_left = min(length - token, sparse_tile_tokens);
    auto acc = op.template get_destination_cooperative_tensor<MatmulView<T>, MatmulView<T>, float>();
#pragma clang loop unroll(full)
    for (ushort i = 0; i < acc.get_capacity(); ++i) {
      acc[i] = 0.0f;
    }
    device T* tokens = hidden + (group.y * args.row_stride + token * args.token_stride);
    device T* words = weight + first_word * args.word_stride;
    for (int k = 0; k < args.units; k += sparse_block_k) {
      const int units_left = min(args.units - k, sparse_block_k);
      MatmulView<T> tokens_view = matmul_view(tokens + k, tokens_left, units_left, args.token_stride);
      MatmulView<T> words_view = matmul_view(words + k, words_left, units_left, args.word_stride);
      op.run(tokens_view, words_view, acc);
      threadgroup_barrier(mem_flags::mem_none);
    }
#pragma clang loop unroll(full)
    for (ushort i = 0; i < acc.get_capacity(); ++i) {
      if (acc.is_valid_element(i)) {
        const auto at = acc.get_multidimensional_index(i);
        logits[at[1] * Logits::pitch + at[0]] = acc[i];
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    pool.add(logits, Logits::pitch, tokens_left, int(thread_index));
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }

  const float value = pool.finish(logits, int(thread_index));
  if (int(thread_index) < words_left) {
    out[int64_t(group.y) * args.words + first_word + int(thread_index)] = length > 0 ? T(value) : T(0.0f);
  }
}

// Relaxed float32 truncates operands to tf32 and runs on the matrix units; exact float32 does not.
// clang-format off
instantiate_kernel("sparse_max_pool_tensorops_float32", sparse_max_pool_tensorops, float, false)
instantiate_kernel("sparse_max_pool_tensorops_float32_relaxed", sparse_max_pool_tensorops, float, true)
instantiate_kernel("sparse_max_pool_tensorops_float16", sparse_max_pool_tensorops, half, true)
instantiate_kernel("sparse_max_pool_tensorops_bfloat16", sparse_max_pool_tensorops, bfloat, true)
