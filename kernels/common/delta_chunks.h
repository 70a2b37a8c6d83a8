#pragma once

#include <metal_stdlib>

#include "kernels/common/delta_gates.h"
#include "kernels/common/token_range.h"

// What the kernels of the gated delta rule by chunks share. A threadgroup has four simdgroups, each with 16 of a
// chunk's tokens.

constant bool delta_for_gradients [[function_constant(7)]]; // states are kept in place of results, short rows are taken
constant bool delta_for_results [[function_constant(8)]];   // its opposite

constant constexpr int C = GATED_DELTA_CHUNK;
constant constexpr int threads = 128;
constant constexpr int simdgroup_rows = C / 4;
constant constexpr int matrix_pitch = C + 4; // of C x C elements in threadgroup memory
constant constexpr int most_columns = 128;   // of K

// Where the parts of a prepared chunk stand.
constant constexpr int inverse_at = 0;
constant constexpr int scores_at = C * C;
constant constexpr int since_start_at = 2 * C * C;
constant constexpr int until_end_at = since_start_at + C;
constant constexpr int key_factors_at = until_end_at + C;
constant constexpr int query_factors_at = key_factors_at + C;
constant constexpr int strengths_at = query_factors_at + C;
constant constexpr int decays_at = strengths_at + C;

// And its vectors in a scan's copy of them.
constant constexpr int scan_factors = decays_at - since_start_at;

struct ScanFactors {
  threadgroup const float* E;
  threadgroup const float* D;
  threadgroup const float* keys;
  threadgroup const float* queries;
  threadgroup const float* strengths;
};

inline ScanFactors scan_factors_of(threadgroup const float* memory) {
  return {memory, memory + C, memory + 2 * C, memory + 3 * C, memory + 4 * C};
}

inline int64_t chunk_index(constant GatedDeltaArgs& args, uint batch, int head, int chunk) {
  return (int64_t(batch) * args.Hv + head) * args.chunks + chunk;
}

inline int64_t prepared_offset(constant GatedDeltaArgs& args, uint batch, int head, int chunk) {
  return chunk_index(args, batch, head, chunk) * GATED_DELTA_PREPARED;
}

// Of what has one row for each token of each chunk of a head, Dv columns wide.
inline int64_t rows_offset(constant GatedDeltaArgs& args, uint batch, int head, int chunk) {
  return chunk_index(args, batch, head, chunk) * C * args.Dv;
}

// Of the state before a chunk; there is one more for each head, after its last.
inline int64_t kept_state_offset(constant GatedDeltaArgs& args, uint batch, int head, int chunk) {
  return ((int64_t(batch) * args.Hv + head) * (args.chunks + 1) + chunk) * args.Dv * args.Dk;
}

struct PreparedVectors {
  threadgroup float* decay;
  threadgroup float* strength;
  threadgroup float* key_factors;
  threadgroup float* query_factors;
};

inline PreparedVectors prepared_vectors(threadgroup float* memory) {
  return {memory, memory + C, memory + 2 * C, memory + 3 * C};
}

// By what a row of k and one of q are multiplied, from the sums of their squares.
inline float2 length_factors(float2 squares, int Dk) {
  if (!delta_normalizes) {
    return float2(1.0f);
  }
  return float2(
      metal::precise::rsqrt(squares.x + delta_norm_eps),
      metal::precise::rsqrt(squares.y + delta_norm_eps) * metal::precise::rsqrt(float(Dk))
  );
}

// From K K^T in threadgroup memory, in its place: A, one thread to a column, then (I + A)^-1, two threads to a column.
inline void invert_chunk(
    threadgroup float* matrix, thread const PreparedVectors& vectors, device float* out, int thread_index
) {
  const int own_row = thread_index / 2;
  const int own_half = thread_index % 2;
  if (thread_index < C) {
    float weight = vectors.key_factors[thread_index];
    for (int i = thread_index + 1; i < C; ++i) {
      weight *= vectors.decay[i];
      matrix[i * matrix_pitch + thread_index] *= vectors.strength[i] * vectors.key_factors[i] * weight;
    }
  }
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  for (int i = 1; i < C; ++i) {
    float sum = 0.0f;
    if (own_row < i) {
      threadgroup const float* row = matrix + i * matrix_pitch;
      sum = own_half == 0 ? row[own_row] : 0.0f;
      for (int l = own_row + 1 + own_half; l < i; l += 2) {
        sum += row[l] * matrix[l * matrix_pitch + own_row];
      }
    }
    sum += metal::simd_shuffle_xor(sum, ushort(1));
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (own_row < i && own_half == 0) {
      matrix[i * matrix_pitch + own_row] = -sum;
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  }
  for (int place = thread_index; place < C * C; place += threads) {
    const int i = place / C;
    const int j = place % C;
    out[inverse_at + place] = j < i ? matrix[i * matrix_pitch + j] : (j == i ? 1.0f : 0.0f);
  }
}

// From Q K^T in threadgroup memory: P and the vectors, one thread to a column.
inline void store_scores(
    threadgroup const float* matrix, thread const PreparedVectors& vectors, device float* out, int thread_index
) {
  if (thread_index >= C) {
    return;
  }
  float weight = vectors.key_factors[thread_index];
  float since_start = 1.0f;
  float until_end = 1.0f;
  for (int i = 0; i < C; ++i) {
    weight *= i > thread_index ? vectors.decay[i] : 1.0f;
    since_start *= i <= thread_index ? vectors.decay[i] : 1.0f;
    until_end *= i > thread_index ? vectors.decay[i] : 1.0f;
    const float score = matrix[i * matrix_pitch + thread_index] * vectors.query_factors[i] * weight;
    out[scores_at + i * C + thread_index] = i >= thread_index ? score : 0.0f;
  }
  out[since_start_at + thread_index] = since_start;
  out[until_end_at + thread_index] = until_end;
  out[key_factors_at + thread_index] = vectors.key_factors[thread_index];
  out[query_factors_at + thread_index] = vectors.query_factors[thread_index];
  out[strengths_at + thread_index] = vectors.strength[thread_index];
  out[decays_at + thread_index] = vectors.decay[thread_index];
}
