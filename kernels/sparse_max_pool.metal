// out[row, word] = max or sum over the row's tokens of f(hidden[row, token] . weight[word] + bias[word]), on
// simdgroup_matrix: every Apple silicon GPU. f and the pooling: common/token_pool.h. No logit leaves the threadgroup.
//
//   for each row and tile of 64 words, one threadgroup of 4 simdgroups:
//     for each tile of TILE_T of the row's tokens:
//       acc = hidden[tokens] weight[words]^T          as matmul.metal's nt: staged blocks, 8x8 fragments, 2 x 2 parts
//       the simdgroups write their fragments to threadgroup memory
//       barrier
//       two threads a word pool the tile's logits, token after token
//       barrier
//     both threads' shares together, f of a maximum, one store
//
// The sum over units ascends for every logit, whatever the tile.
//
// Provenance: SPLADE, Formal et al., arXiv 2107.05720 (sum) and 2109.10086 (maximum); the double logarithm, arXiv
// 2504.14839. 64 words: one for every two threads.

// clang-format off: the types first that simdgroup_matrix builds on
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
// clang-format on

#include "kernels/common/instantiate.h"
#include "kernels/common/simdgroup_blocks.h"
#include "kernels/common/token_pool.h"

using namespace metal;

template <typename T, int TILE_T>
[[kernel, max_total_threads_per_threadgroup(128)]] void sparse_max_pool(
    device const T* hidden [[buffer(0), function_constant(sparse_has_tokens)]],
    device const T* weight [[buffer(1), function_constant(sparse_has_tokens)]],
    device T* out [[buffer(2)]],
    constant SparseMaxPoolArgs& args [[buffer(3)]],
    device const int* lengths [[buffer(4), function_constant(sparse_has_lengths)]],
    device const T* bias [[buffer(5), function_constant(sparse_has_bias)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]
) {
  constexpr int tile_k = 64 / sizeof(T);
  constexpr int fragments_t = TILE_T / 2 / fragment_size; // of one simdgroup
  constexpr int fragments_w = pool_words / 2 / fragment_size;
  using Tokens = StagedBlock<T, TILE_T, tile_k>;
  using Words = StagedBlock<T, pool_words, tile_k>;
  using Logits = StagedBlock<float, TILE_T, pool_words>;

  // Logits take the place of the staged blocks.
  static_assert((Tokens::size + Words::size) * sizeof(T) <= Logits::size * sizeof(float), "room for both blocks");
  threadgroup float4 memory[Logits::size / 4];
  threadgroup T* tokens_block = reinterpret_cast<threadgroup T*>(memory);
  threadgroup T* words_block = tokens_block + Tokens::size;
  threadgroup float* logits = reinterpret_cast<threadgroup float*>(memory);

  const int first_word = int(group.x) * pool_words;
  const int words_left = args.words - first_word;
  const int length = sparse_has_tokens ? pool_length(lengths, args, group.y) : 0;
  const int part_t = int(simdgroup / 2) * (TILE_T / 2);
  const int part_w = int(simdgroup % 2) * (pool_words / 2);
  TokenPool pool = token_pool(bias, args, first_word, words_left, int(thread_index));

  for (int token = 0; token < length; token += TILE_T) {
    simdgroup_float8x8 acc[fragments_t][fragments_w];
#pragma clang loop unroll(full)
    for (int i = 0; i < fragments_t; ++i) {
#pragma clang loop unroll(full)
      for (int j = 0; j < fragments_w; ++j) {
        acc[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
      }
    }
    device const T* tokens = hidden + (group.y * args.row_stride + token * args.token_stride);
    device const T* words = weight + first_word * args.word_stride;
    for (int k = 0; k < args.units; k += tile_k) {
      const int2 tokens_left(length - token, args.units - k);
      stage_block<T, TILE_T, tile_k>(
          tokens_block, tokens + k, args.token_stride, tokens_left, sparse_vector_hidden, int(thread_index)
      );
      const int2 left(words_left, args.units - k);
      stage_block<T, pool_words, tile_k>(
          words_block, words + k, args.word_stride, left, sparse_vector_weight, int(thread_index)
      );
      threadgroup_barrier(mem_flags::mem_threadgroup);
      multiply_blocks<T, false, true, tile_k>(
          acc, tokens_block, Tokens::pitch, words_block, Words::pitch, part_t, part_w
      );
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
#pragma clang loop unroll(full)
    for (int i = 0; i < fragments_t; ++i) {
#pragma clang loop unroll(full)
      for (int j = 0; j < fragments_w; ++j) {
        const int at = (part_t + i * fragment_size) * Logits::pitch + (part_w + j * fragment_size);
        simdgroup_store(acc[i][j], logits + at, Logits::pitch);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    pool.add(logits, Logits::pitch, min(TILE_T, length - token), int(thread_index));
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }

  const float value = pool.finish(logits, int(thread_index));
  if (int(thread_index) < min(words_left, pool_words)) {
    out[int64_t(group.y) * args.words + first_word + int(thread_index)] = length > 0 ? T(value) : T(0.0f);
  }
}

#define instantiate_dtype(dtype, T)                                                 \
  instantiate_kernel("sparse_max_pool_portable_64_" #dtype, sparse_max_pool, T, 64) \
      instantiate_kernel("sparse_max_pool_portable_32_" #dtype, sparse_max_pool, T, 32)

// clang-format off
instantiate_dtype(float32, float)
instantiate_dtype(float16, half)
instantiate_dtype(bfloat16, bfloat)
