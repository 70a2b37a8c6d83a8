// The gated delta rule for prompts, by chunks of C = 64 tokens. Within a chunk, with L[i, j] the product of the decays
// of tokens j + 1 .. i, E[i] that of 0 .. i, and D[i] = L[last, i]:
//
//   A = strictly lower part of beta_i (k_i . k_j) L[i, j]     P = lower part of (q_i . k_j) L[i, j]
//   U = (I + A)^-1 beta (V - E (K S))     Y = E (Q S) + P U     S = E[last] S + K^T (D U)
//
// prepare, one threadgroup for each chunk of each head, leaves (I + A)^-1, P, and for each token E, D, the inverse
// lengths of k and q, beta and the decay:
//   K K^T and Q K^T on simdgroup_matrix, from blocks of 32 columns
//   (I + A)^-1 by rows in threadgroup memory, two threads to a column, A's row giving way to the inverse's
//
// scan, one threadgroup for each 16 columns of V of each head, goes over the chunks with its slice of S^T in
// threadgroup memory; all products on simdgroup_matrix, K and Q from blocks of 16 columns. For gated_delta_grad.metal
// it keeps S before each chunk and after the last, and U, and gives no results.
//
// Decays are multiplied and not taken as differences of sums, in which a strong decay would swallow a weak one. All in
// float32. A row of few tokens is left to gated_delta.metal, unless for gradients. Chunks begin where their row does,
// so that a row's bits do not depend on the others.
//
// Provenance: Yang, Kautz and Hatamizadeh, arXiv 2412.06464; Yang et al., arXiv 2406.06484.

// clang-format off: the types first that simdgroup_matrix builds on
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
// clang-format on

#include "kernels/common/delta_fragments.h"
#include "kernels/common/instantiate.h"

using namespace metal;

template <typename T>
[[kernel, max_total_threads_per_threadgroup(128)]] void gated_delta_prepare(
    device const T* q [[buffer(0)]],
    device const T* k [[buffer(1)]],
    device const float* g [[buffer(2), function_constant(delta_has_log_decay)]],
    device const float* beta [[buffer(3), function_constant(delta_has_log_decay)]],
    device const T* a [[buffer(4), function_constant(delta_has_gates)]],
    device const T* b [[buffer(5), function_constant(delta_has_gates)]],
    device const float* A_log [[buffer(6), function_constant(delta_has_gates)]],
    device const float* dt_bias [[buffer(7), function_constant(delta_has_gates)]],
    device const int* starts [[buffer(8), function_constant(range_has_starts)]],
    device const int* lengths [[buffer(9), function_constant(range_has_lengths)]],
    device float* prepared [[buffer(10)]],
    constant GatedDeltaArgs& args [[buffer(11)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_number [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]
) {
  constexpr int columns = 32;
  constexpr int pitch = columns + 4;
  static_assert(C * matrix_pitch <= 2 * C * pitch, "the matrix takes the place of the staged blocks");
  threadgroup float memory[2 * C * pitch];
  threadgroup float vector_memory[4 * C];
  const PreparedVectors vectors = prepared_vectors(vector_memory);

  const int thread_index = int(thread_number);
  const int head = int(group.y);
  const uint batch = group.z;
  const int key_head = head / (args.Hv / args.Hk);
  device const int* row_starts = nullptr;
  device const int* row_lengths = nullptr;
  if (range_has_starts) {
    row_starts = starts;
  }
  if (range_has_lengths) {
    row_lengths = lengths;
  }
  const int2 range = token_range(row_starts, args.starts_stride, row_lengths, args.lengths_stride, batch, args.T);
  const int first = range.x + int(group.x) * C;
  const int tokens = min(C, range.y - first);
  if (tokens <= 0 || (!delta_for_gradients && range.y - range.x < GATED_DELTA_FEW_TOKENS)) {
    return;
  }

  if (thread_index < C) {
    float2 gate(1.0f, 0.0f); // past the end the state stays
    if (thread_index < tokens) {
      const int token = first + thread_index;
      if (delta_has_gates) {
        const float rate = A_log[head * args.A_log_stride];
        gate = gate_at(a, b, rate, dt_bias[head * args.dt_bias_stride], args, batch, token, head);
      } else {
        gate = gate_at(g, beta, 0.0f, 0.0f, args, batch, token, head);
      }
    }
    vectors.decay[thread_index] = gate.x;
    vectors.strength[thread_index] = gate.y;
  }

  // K K^T and Q K^T of this simdgroup's rows, and the squares of half a row of each.
  threadgroup float* keys = memory;
  threadgroup float* queries = memory + C * pitch;
  device const T* head_keys = k + delta_offset(args.k_strides, batch, 0, key_head);
  device const T* head_queries = q + delta_offset(args.q_strides, batch, 0, key_head);
  const int first_row = int(simdgroup) * simdgroup_rows;
  const int own_row = thread_index / 2;
  const int own_half = thread_index % 2;
  simdgroup_float8x8 key_products[row_fragments][C / fragment_size];
  simdgroup_float8x8 query_products[row_fragments][C / fragment_size];
  clear_fragments(key_products);
  clear_fragments(query_products);
  float2 squares(0.0f);
  for (int column = 0; column < args.Dk; column += columns) {
    stage_tokens<T, columns>(
        keys, head_keys, args.k_strides[1], args.k_strides[3], first, tokens, column, args.Dk, thread_index
    );
    stage_tokens<T, columns>(
        queries, head_queries, args.q_strides[1], args.q_strides[3], first, tokens, column, args.Dk, thread_index
    );
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int i = 0; i < columns / 2; ++i) {
      const int place = own_row * pitch + own_half * (columns / 2) + i;
      squares += float2(keys[place] * keys[place], queries[place] * queries[place]);
    }
#pragma clang loop unroll(full)
    for (int kk = 0; kk < columns; kk += fragment_size) {
      simdgroup_float8x8 left_keys[row_fragments];
      simdgroup_float8x8 left_queries[row_fragments];
#pragma clang loop unroll(full)
      for (int i = 0; i < row_fragments; ++i) {
        left_keys[i] = load_fragment<float, false>(keys, pitch, first_row + i * fragment_size, kk);
        left_queries[i] = load_fragment<float, false>(queries, pitch, first_row + i * fragment_size, kk);
      }
#pragma clang loop unroll(full)
      for (int j = 0; j < C / fragment_size; ++j) {
        simdgroup_float8x8 right = load_fragment<float, true>(keys, pitch, kk, j * fragment_size);
#pragma clang loop unroll(full)
        for (int i = 0; i < row_fragments; ++i) {
          simdgroup_multiply_accumulate(key_products[i][j], left_keys[i], right, key_products[i][j]);
          simdgroup_multiply_accumulate(query_products[i][j], left_queries[i], right, query_products[i][j]);
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  squares += float2(simd_shuffle_xor(squares.x, ushort(1)), simd_shuffle_xor(squares.y, ushort(1)));
  if (own_half == 0) {
    const float2 factors = length_factors(squares, args.Dk);
    vectors.key_factors[own_row] = factors.x;
    vectors.query_factors[own_row] = factors.y;
  }

  threadgroup float* matrix = memory;
  device float* out = prepared + prepared_offset(args, batch, head, int(group.x));
  store_rows(matrix, matrix_pitch, key_products, first_row);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  invert_chunk(matrix, vectors, out, thread_index);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  store_rows(matrix, matrix_pitch, query_products, first_row);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  store_scores(matrix, vectors, out, thread_index);
}

template <typename T>
[[kernel, max_total_threads_per_threadgroup(128)]] void gated_delta_scan(
    device const T* q [[buffer(0)]],
    device const T* k [[buffer(1)]],
    device const T* v [[buffer(2)]],
    device const float* prepared [[buffer(3)]],
    device const float* state [[buffer(4), function_constant(delta_has_state)]],
    device const int* starts [[buffer(5), function_constant(range_has_starts)]],
    device const int* lengths [[buffer(6), function_constant(range_has_lengths)]],
    device T* y [[buffer(7), function_constant(delta_for_results)]],
    device float* new_state [[buffer(8), function_constant(delta_for_results)]],
    device float* kept_states [[buffer(9), function_constant(delta_for_gradients)]],
    device float* kept_U [[buffer(10), function_constant(delta_for_gradients)]],
    constant GatedDeltaArgs& args [[buffer(11)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_number [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]
) {
  threadgroup float S[slice * state_pitch]; // S^T: rows are columns of V
  threadgroup float keys[C * slice_pitch];
  threadgroup float queries[C * slice_pitch];
  threadgroup float U[C * slice_pitch];
  threadgroup float Y[C * slice_pitch];
  threadgroup float vectors[scan_factors];

  const int thread_index = int(thread_number);
  const int first_value = int(group.x) * slice;
  const int head = int(group.y);
  const uint batch = group.z;
  const int key_head = head / (args.Hv / args.Hk);
  const int values = min(slice, args.Dv - first_value);
  device const int* row_starts = nullptr;
  device const int* row_lengths = nullptr;
  if (range_has_starts) {
    row_starts = starts;
  }
  if (range_has_lengths) {
    row_lengths = lengths;
  }
  const int2 range = token_range(row_starts, args.starts_stride, row_lengths, args.lengths_stride, batch, args.T);
  if (!delta_for_gradients && range.y - range.x < GATED_DELTA_FEW_TOKENS) {
    return;
  }
  const int64_t y_head = ((int64_t(batch) * args.T) * args.Hv + head) * args.Dv + first_value;
  const int64_t y_stride = int64_t(args.Hv) * args.Dv;
  if (delta_for_results) {
    for (int i = thread_index; i < args.T * slice; i += threads) {
      const int t = i / slice;
      if ((t < range.x || t >= range.y) && i % slice < values) {
        y[y_head + t * y_stride + i % slice] = T(0.0f);
      }
    }
  }
  for (int i = thread_index; i < slice * most_columns; i += threads) {
    const int row = i / most_columns;
    const int column = i % most_columns;
    float x = 0.0f;
    if (delta_has_state && row < values && column < args.Dk) {
      const int64_t offset = delta_offset(args.state_strides, batch, head, first_value + row);
      x = state[offset + column * args.state_strides[3]];
    }
    S[row * state_pitch + column] = x;
  }

  device const T* head_keys = k + delta_offset(args.k_strides, batch, 0, key_head);
  device const T* head_queries = q + delta_offset(args.q_strides, batch, 0, key_head);
  device const T* head_values = v + delta_offset(args.v_strides, batch, 0, head);
  const int first_row = int(simdgroup) * simdgroup_rows;
  const ScanFactors factors = scan_factors_of(vectors);
  int chunk = 0;
  for (; range.x + chunk * C < range.y; ++chunk) {
    const int first = range.x + chunk * C;
    const int tokens = min(C, range.y - first);
    device const float* own = prepared + prepared_offset(args, batch, head, chunk);
    for (int i = thread_index; i < scan_factors; i += threads) {
      vectors[i] = own[since_start_at + i];
    }
    if (delta_for_gradients) {
      device float* kept = kept_states + kept_state_offset(args, batch, head, chunk);
      store_state(kept, args, S, first_value, values, thread_index);
    }

    // K S and Q S.
    simdgroup_float8x8 from_keys[row_fragments][slice_fragments];
    simdgroup_float8x8 from_queries[row_fragments][slice_fragments];
    clear_fragments(from_keys);
    clear_fragments(from_queries);
    for (int column = 0; column < args.Dk; column += slice) {
      stage_tokens<T, slice>(
          keys, head_keys, args.k_strides[1], args.k_strides[3], first, tokens, column, args.Dk, thread_index
      );
      if (delta_for_results) {
        stage_tokens<T, slice>(
            queries, head_queries, args.q_strides[1], args.q_strides[3], first, tokens, column, args.Dk, thread_index
        );
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma clang loop unroll(full)
      for (int kk = 0; kk < slice; kk += fragment_size) {
#pragma clang loop unroll(full)
        for (int j = 0; j < slice_fragments; ++j) {
          simdgroup_float8x8 right = load_fragment<float, true>(S, state_pitch, column + kk, j * fragment_size);
#pragma clang loop unroll(full)
          for (int i = 0; i < row_fragments; ++i) {
            const int row = first_row + i * fragment_size;
            simdgroup_float8x8 left_keys = load_fragment<float, false>(keys, slice_pitch, row, kk);
            simdgroup_multiply_accumulate(from_keys[i][j], left_keys, right, from_keys[i][j]);
            if (delta_for_results) {
              simdgroup_float8x8 left_queries = load_fragment<float, false>(queries, slice_pitch, row, kk);
              simdgroup_multiply_accumulate(from_queries[i][j], left_queries, right, from_queries[i][j]);
            }
          }
        }
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    store_rows(U, slice_pitch, from_keys, first_row);
    store_rows(Y, slice_pitch, from_queries, first_row);
    threadgroup_barrier(mem_flags::mem_threadgroup);

    // beta (V - E (K S)) and E (Q S).
    for (int i = thread_index; i < C * slice; i += threads) {
      const int row = i / slice;
      const int column = i % slice;
      const int place = row * slice_pitch + column;
      float value = 0.0f;
      if (row < tokens && column < values) {
        value = float(head_values[(first + row) * args.v_strides[1] + (first_value + column) * args.v_strides[3]]);
      }
      U[place] = factors.strengths[row] * (value - factors.E[row] * factors.keys[row] * U[place]);
      Y[place] *= factors.E[row] * factors.queries[row];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    simdgroup_float8x8 acc[row_fragments][slice_fragments];
    clear_fragments(acc);
    multiply_triangle<false>(acc, own + inverse_at, U, slice_pitch, first_row);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    store_rows(U, slice_pitch, acc, first_row);
    threadgroup_barrier(mem_flags::mem_threadgroup);

    if (delta_for_results) {
      load_rows(acc, Y, slice_pitch, first_row);
      multiply_triangle<false>(acc, own + scores_at, U, slice_pitch, first_row);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      store_rows(Y, slice_pitch, acc, first_row);
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    for (int i = thread_index; i < C * slice; i += threads) {
      const int row = i / slice;
      const int column = i % slice;
      const int place = row * slice_pitch + column;
      if (row < tokens && column < values) {
        if (delta_for_results) {
          y[y_head + (first + row) * y_stride + column] = T(Y[place]);
        }
        if (delta_for_gradients) {
          const int64_t rows = rows_offset(args, batch, head, chunk);
          kept_U[rows + int64_t(row) * args.Dv + first_value + column] = U[place];
        }
      }
      U[place] *= factors.D[row] * factors.keys[row];
    }
    const float whole_decay = factors.E[C - 1];
    for (int i = thread_index; i < slice * most_columns; i += threads) {
      S[i / most_columns * state_pitch + i % most_columns] *= whole_decay;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    // S^T += (D U)^T K: each simdgroup has one fragment of each block of 16 columns.
    const int value_row = int(simdgroup / 2) * fragment_size;
    const int key_column = int(simdgroup % 2) * fragment_size;
    for (int column = 0; column < args.Dk; column += slice) {
      stage_tokens<T, slice>(
          keys, head_keys, args.k_strides[1], args.k_strides[3], first, tokens, column, args.Dk, thread_index
      );
      threadgroup_barrier(mem_flags::mem_threadgroup);
      simdgroup_float8x8 sum = load_fragment<float, false>(S, state_pitch, value_row, column + key_column);
      for (int kk = 0; kk < C; kk += fragment_size) {
        simdgroup_float8x8 left = load_fragment<float, true>(U, slice_pitch, value_row, kk);
        simdgroup_float8x8 right = load_fragment<float, false>(keys, slice_pitch, kk, key_column);
        simdgroup_multiply_accumulate(sum, left, right, sum);
      }
      simdgroup_store(sum, S + (value_row * state_pitch + column + key_column), state_pitch);
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
  }

  if (delta_for_gradients) {
    device float* kept = kept_states + kept_state_offset(args, batch, head, chunk);
    store_state(kept, args, S, first_value, values, thread_index);
  }
  if (delta_for_results) {
    device float* out = new_state + (int64_t(batch) * args.Hv + head) * args.Dv * args.Dk;
    store_state(out, args, S, first_value, values, thread_index);
  }
}

// clang-format off
instantiate_kernel("gated_delta_prepare_float32", gated_delta_prepare, float)
instantiate_kernel("gated_delta_prepare_float16", gated_delta_prepare, half)
instantiate_kernel("gated_delta_prepare_bfloat16", gated_delta_prepare, bfloat)
instantiate_kernel("gated_delta_scan_float32", gated_delta_scan, float)
instantiate_kernel("gated_delta_scan_float16", gated_delta_scan, half)
instantiate_kernel("gated_delta_scan_bfloat16", gated_delta_scan, bfloat)
