#pragma once

#include <metal_stdlib>

#include "kernels/args/sparse_max_pool.h"
#include "kernels/common/activation.h"

// Pooling of logits over the tokens of a row: out = max_t f(logit[t]) or sum_t f(logit[t]), f(x) = log(1 + relu(x)),
// or that of that. f is monotonic and f(0) = 0: of the maximum it is taken once, and no token gives 0.
//
// A threadgroup of 128 threads pools a tile of words, two threads a word: one has the even tokens, one the odd ones, in
// ascending order, whatever the tile. So a row's bits depend on its own tokens alone.

// Numbers that no header of the matmul families has.
constant bool sparse_has_lengths [[function_constant(20)]]; // otherwise every token counts
constant bool sparse_has_bias [[function_constant(21)]];
constant bool sparse_vector_hidden [[function_constant(22)]]; // runs of four units are on a boundary of four
constant bool sparse_vector_weight [[function_constant(23)]];
constant int sparse_activation [[function_constant(24)]];  // a SparseActivation
constant bool sparse_sums [[function_constant(25)]];       // otherwise the maximum
constant bool sparse_has_tokens [[function_constant(26)]]; // otherwise hidden and weight are not bound

constant constexpr int pool_words = 64; // of a tile

inline float sparse_activate(float logit) {
  const float once = log_one_plus(relu(logit));
  return sparse_activation == SPARSE_ACTIVATION_LOG1P_LOG1P_RELU ? log_one_plus(once) : once;
}

// The tokens of a row that count.
inline int pool_length(device const int* lengths, constant SparseMaxPoolArgs& args, uint row) {
  return sparse_has_lengths ? metal::clamp(lengths[row * args.length_stride], 0, args.tokens) : args.tokens;
}

// One thread's share of the pooling of a tile.
struct TokenPool {
  float pooled;
  float bias;

  // A NaN stays.
  static float larger(float a, float b) {
    return b > a || b != b ? b : a;
  }

  static float combine(float a, float b) {
    return sparse_sums ? a + b : larger(a, b);
  }

  // Pools `count` tokens of the tile's logits, rows of `pitch`; the first token of the tile is an even one of the row.
  void add(threadgroup const float* logits, int pitch, int count, int thread_index) {
    for (int token = thread_index / pool_words; token < count; token += 2) {
      const float logit = logits[token * pitch + thread_index % pool_words];
      pooled = combine(pooled, sparse_sums ? sparse_activate(logit + bias) : logit);
    }
  }

  // The word's value, of both threads' shares; `shared` has room for a tile of words, and threads come here together.
  float finish(threadgroup float* shared, int thread_index) {
    if (thread_index >= pool_words) {
      shared[thread_index - pool_words] = pooled;
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (thread_index >= pool_words) {
      return 0.0f;
    }
    const float both = combine(pooled, shared[thread_index]);
    return sparse_sums ? both : sparse_activate(both + bias);
  }
};

// `words_left` are left from the first of the tile on.
template <typename T>
inline TokenPool token_pool(
    device const T* bias, constant SparseMaxPoolArgs& args, int first_word, int words_left, int thread_index
) {
  const int word = thread_index % pool_words;
  TokenPool pool = {sparse_sums ? 0.0f : -INFINITY, 0.0f};
  if (sparse_has_bias && word < words_left) {
    pool.bias = float(bias[(first_word + word) * args.bias_stride]);
  }
  return pool;
}
