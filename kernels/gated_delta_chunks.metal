// The gated delta rule for prompts, by chunks of C = 64 tokens. Within a chunk, with L[i, j] the product of the decays
// of tokens j + 1 .. i, E[i] that of 0 .. i, and D[i] = L[last, i]:
//
//   A = strictly lower part of beta_i (k_i . k_j) L[i, j]     W = (I + A)^-1 beta     P = lower part of (q_i . k_j)
//   L[i, j] U = W (V - E (K S))     Y = E (Q S) + P U     S = E[last] S + K^T (D U)
//
// prepare, one threadgroup for each chunk of each head, leaves W, P, E, D and the inverse lengths of k and q:
//   K K^T and Q K^T on simdgroup_matrix, from blocks of 32 columns
//   (I + A)^-1 by rows in threadgroup memory, two threads to a column, A's row giving way to the inverse's
//
// scan, one threadgroup for each 16 columns of V of each head, goes over the chunks with its slice of S^T in
// threadgroup memory; all products on simdgroup_matrix, K and Q from blocks of 16 columns.
//
// Decays are multiplied and not taken as differences of sums, in which a strong decay would swallow a weak one. All in
// float32. A row of few tokens is left to gated_delta.metal. Chunks begin where their row does, so that a row's bits do
// not depend on the others.
//
// Provenance: Yang, Kautz and Hatamizadeh, arXiv 2412.06464; Yang et al., arXiv 2406.06484.

// clang-format off: the types first that simdgroup_matrix builds on
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
// clang-format on

#include "kernels/args/gated_delta.h"
#include "kernels/common/delta_gates.h"
#include "kernels/common/fragments.h"
#include "kernels/common/instantiate.h"
#include "kernels/common/token_range.h"

using namespace metal;

constant constexpr int C = GATED_DELTA_CHUNK;
constant constexpr int threads = 128;
constant constexpr int simdgroup_rows = C / 4; // of a chunk's tokens, for each of four simdgroups
constant constexpr int row_fragments = simdgroup_rows / fragment_size;

// Where the parts of a prepared chunk stand.
constant constexpr int inverse_at = 0;
constant constexpr int scores_at = C * C;
constant constexpr int since_start_at = 2 * C * C;
constant constexpr int until_end_at = since_start_at + C;
constant constexpr int key_factors_at = until_end_at + C;
constant constexpr int query_factors_at = key_factors_at + C;

inline int64_t prepared_offset(constant GatedDeltaArgs& args, uint batch, int head, int chunk) {
  return ((int64_t(batch) * args.Hv + head) * args.chunks + chunk) * GATED_DELTA_PREPARED;
}

// COLUMNS columns from `column` on of the tokens [first, first + tokens) of one head; zeros past them and past `width`.
template <typename T, int COLUMNS>
inline void stage_tokens(
    threadgroup float* block,
    device const T* head,
    int64_t token_stride,
    int64_t column_stride,
    int first,
    int tokens,
    int column,
    int width,
    int thread_index
) {
  for (int i = thread_index; i < C * COLUMNS; i += threads) {
    const int row = i / COLUMNS;
    const int place = column + i % COLUMNS;
    float x = 0.0f;
    if (row < tokens && place < width) {
      x = float(head[(first + row) * token_stride + place * column_stride]);
    }
    block[row * (COLUMNS + 4) + i % COLUMNS] = x;
  }
}

template <int COLUMNS>
inline void clear_fragments(thread simdgroup_float8x8 (&acc)[row_fragments][COLUMNS]) {
#pragma clang loop unroll(full)
  for (int i = 0; i < row_fragments; ++i) {
#pragma clang loop unroll(full)
    for (int j = 0; j < COLUMNS; ++j) {
      acc[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
  }
}

template <int COLUMNS>
inline void store_rows(
    threadgroup float* block, int pitch, thread simdgroup_float8x8 (&acc)[row_fragments][COLUMNS], int first_row
) {
#pragma clang loop unroll(full)
  for (int i = 0; i < row_fragments; ++i) {
#pragma clang loop unroll(full)
    for (int j = 0; j < COLUMNS; ++j) {
      simdgroup_store(acc[i][j], block + ((first_row + i * fragment_size) * pitch + j * fragment_size), pitch);
    }
  }
}

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
  constexpr int matrix_pitch = C + 4;
  static_assert(C * matrix_pitch <= 2 * C * pitch, "the matrix takes the place of the staged blocks");
  threadgroup float memory[2 * C * pitch];
  threadgroup float decay[C];
  threadgroup float strength[C];
  threadgroup float key_factors[C];
  threadgroup float query_factors[C];

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
  if (tokens <= 0 || range.y - range.x < GATED_DELTA_FEW_TOKENS) {
    return;
  }

  if (thread_index < C) {
    float2 gate(1.0f, 0.0f); // past the end the state stays
    if (thread_index < tokens) {
      const int64_t g_place = delta_offset(args.g_strides, batch, first + thread_index, head);
      const int64_t beta_place = delta_offset(args.beta_strides, batch, first + thread_index, head);
      if (delta_has_gates) {
        const float rate = A_log[head * args.A_log_stride];
        gate = delta_gate(float(a[g_place]), float(b[beta_place]), rate, dt_bias[head * args.dt_bias_stride]);
      } else {
        gate = delta_gate(g[g_place], beta[beta_place], 0.0f, 0.0f);
      }
    }
    decay[thread_index] = gate.x;
    strength[thread_index] = gate.y;
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
    float2 factors(1.0f);
    if (delta_normalizes) {
      factors.x = precise::rsqrt(squares.x + delta_norm_eps);
      factors.y = precise::rsqrt(squares.y + delta_norm_eps) * precise::rsqrt(float(args.Dk));
    }
    key_factors[own_row] = factors.x;
    query_factors[own_row] = factors.y;
  }

  // A, one thread to a column, then (I + A)^-1 in its place.
  threadgroup float* matrix = memory;
  store_rows(matrix, matrix_pitch, key_products, first_row);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (thread_index < C) {
    float weight = key_factors[thread_index];
    for (int i = thread_index + 1; i < C; ++i) {
      weight *= decay[i];
      matrix[i * matrix_pitch + thread_index] *= strength[i] * key_factors[i] * weight;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int i = 1; i < C; ++i) {
    float sum = 0.0f;
    if (own_row < i) {
      threadgroup const float* row = matrix + i * matrix_pitch;
      sum = own_half == 0 ? row[own_row] : 0.0f;
      for (int l = own_row + 1 + own_half; l < i; l += 2) {
        sum += row[l] * matrix[l * matrix_pitch + own_row];
      }
    }
    sum += simd_shuffle_xor(sum, ushort(1));
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (own_row < i && own_half == 0) {
      matrix[i * matrix_pitch + own_row] = -sum;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  device float* out = prepared + prepared_offset(args, batch, head, int(group.x));
  for (int place = thread_index; place < C * C; place += threads) {
    const int i = place / C;
    const int j = place % C;
    const float x = j < i ? matrix[i * matrix_pitch + j] : (j == i ? 1.0f : 0.0f);
    out[inverse_at + place] = x * strength[j];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  store_rows(matrix, matrix_pitch, query_products, first_row);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (thread_index < C) {
    float weight = key_factors[thread_index];
    float since_start = 1.0f;
    float until_end = 1.0f;
    for (int i = 0; i < C; ++i) {
      weight *= i > thread_index ? decay[i] : 1.0f;
      since_start *= i <= thread_index ? decay[i] : 1.0f;
      until_end *= i > thread_index ? decay[i] : 1.0f;
      const float score = matrix[i * matrix_pitch + thread_index] * query_factors[i] * weight;
      out[scores_at + i * C + thread_index] = i >= thread_index ? score : 0.0f;
    }
    out[since_start_at + thread_index] = since_start;
    out[until_end_at + thread_index] = until_end;
    out[key_factors_at + thread_index] = key_factors[thread_index];
    out[query_factors_at + thread_index] = query_factors[thread_index];
  }
}

constant constexpr int slice = 16; // columns of V, and of the staged blocks
constant constexpr int slice_pitch = slice + 4;
constant constexpr int slice_fragments = slice / fragment_size;
constant constexpr int most_columns = 128; // of K
constant constexpr int state_pitch = most_columns + 4;

// acc += the rows of this simdgroup of a lower triangular matrix in device memory times `block`.
inline void multiply_lower(
    thread simdgroup_float8x8 (&acc)[row_fragments][slice_fragments],
    device const float* lower,
    threadgroup const float* block,
    int first_row
) {
  for (int kk = 0; kk < first_row + simdgroup_rows; kk += fragment_size) {
    simdgroup_float8x8 left[row_fragments];
    simdgroup_float8x8 right[slice_fragments];
#pragma clang loop unroll(full)
    for (int i = 0; i < row_fragments; ++i) {
      simdgroup_load(left[i], lower + ((first_row + i * fragment_size) * C + kk), C);
    }
#pragma clang loop unroll(full)
    for (int j = 0; j < slice_fragments; ++j) {
      right[j] = load_fragment<float, false>(block, slice_pitch, kk, j * fragment_size);
    }
#pragma clang loop unroll(full)
    for (int i = 0; i < row_fragments; ++i) {
#pragma clang loop unroll(full)
      for (int j = 0; j < slice_fragments; ++j) {
        simdgroup_multiply_accumulate(acc[i][j], left[i], right[j], acc[i][j]);
      }
    }
  }
}

// Multiplies the rows of a staged block.
inline void scale_rows(threadgroup float* block, threadgroup const float* factors, int thread_index) {
  for (int i = thread_index; i < C * slice; i += threads) {
    block[i / slice * slice_pitch + i % slice] *= factors[i / slice];
  }
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
    device T* y [[buffer(7)]],
    device float* new_state [[buffer(8)]],
    constant GatedDeltaArgs& args [[buffer(9)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_number [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]
) {
  threadgroup float S[slice * state_pitch]; // S^T: rows are columns of V
  threadgroup float keys[C * slice_pitch];
  threadgroup float queries[C * slice_pitch];
  threadgroup float U[C * slice_pitch];
  threadgroup float Y[C * slice_pitch];
  threadgroup float factors[4 * C]; // E, D, and those of keys and queries

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
  if (range.y - range.x < GATED_DELTA_FEW_TOKENS) {
    return;
  }
  device T* y_head = y + ((int64_t(batch) * args.T) * args.Hv + head) * args.Dv + first_value;
  const int64_t y_stride = int64_t(args.Hv) * args.Dv;
  for (int i = thread_index; i < args.T * slice; i += threads) {
    const int t = i / slice;
    if ((t < range.x || t >= range.y) && i % slice < values) {
      y_head[t * y_stride + i % slice] = T(0.0f);
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
  for (int chunk = 0; range.x + chunk * C < range.y; ++chunk) {
    const int first = range.x + chunk * C;
    const int tokens = min(C, range.y - first);
    device const float* own = prepared + prepared_offset(args, batch, head, chunk);
    for (int i = thread_index; i < 4 * C; i += threads) {
      factors[i] = own[since_start_at + i];
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
      stage_tokens<T, slice>(
          queries, head_queries, args.q_strides[1], args.q_strides[3], first, tokens, column, args.Dk, thread_index
      );
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
            simdgroup_float8x8 left_queries = load_fragment<float, false>(queries, slice_pitch, row, kk);
            simdgroup_multiply_accumulate(from_keys[i][j], left_keys, right, from_keys[i][j]);
            simdgroup_multiply_accumulate(from_queries[i][j], left_queries, right, from_queries[i][j]);
          }
        }
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    store_rows(U, slice_pitch, from_keys, first_row);
    store_rows(Y, slice_pitch, from_queries, first_row);
    threadgroup_barrier(mem_flags::mem_threadgroup);

    // V - E (K S) and E (Q S).
    for (int i = thread_index; i < C * slice; i += threads) {
      const int row = i / slice;
      const int column = i % slice;
      const int place = row * slice_pitch + column;
      float value = 0.0f;
      if (row < tokens && column < values) {
        value = float(head_values[(first + row) * args.v_strides[1] + (first_value + column) * args.v_strides[3]]);
      }
      U[place] = value - factors[row] * factors[2 * C + row] * U[place];
      Y[place] *= factors[row] * factors[3 * C + row];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    simdgroup_float8x8 acc[row_fragments][slice_fragments];
    clear_fragments(acc);
    multiply_lower(acc, own + inverse_at, U, first_row);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    store_rows(U, slice_pitch, acc, first_row);
    threadgroup_barrier(mem_flags::mem_threadgroup);

#pragma clang loop unroll(full)
    for (int i = 0; i < row_fragments; ++i) {
#pragma clang loop unroll(full)
      for (int j = 0; j < slice_fragments; ++j) {
        const int row = first_row + i * fragment_size;
        acc[i][j] = load_fragment<float, false>(Y, slice_pitch, row, j * fragment_size);
      }
    }
    multiply_lower(acc, own + scores_at, U, first_row);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    store_rows(Y, slice_pitch, acc, first_row);
    scale_rows(U, factors + C, thread_index);
    const float whole_decay = factors[C - 1];
    for (int i = thread_index; i < slice * most_columns; i += threads) {
      S[i / most_columns * state_pitch + i % most_columns] *= whole_decay;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int i = thread_index; i < C * slice; i += threads) {
      const int row = i / slice;
      if (row < tokens && i % slice < values) {
        y_head[(first + row) * y_stride + i % slice] = T(Y[row * slice_pitch + i % slice]);
      }
    }

    // S^T += (D U)^T K: each simdgroup has one fragment of each block of 16 columns.
    const int value_row = int(simdgroup / 2) * fragment_size;
    const int key_column = int(simdgroup % 2) * fragment_size;
    for (int column = 0; column < args.Dk; column += slice) {
      stage_tokens<T, slice>(
          keys, head_keys, args.k_strides[1], args.k_strides[3], first, tokens, column, args.Dk, thread_index
      );
      threadgroup_barrier(mem_flags::mem_threadgroup);
      scale_rows(keys, factors + 2 * C, thread_index);
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

  device float* out = new_state + ((int64_t(batch) * args.Hv + head) * args.Dv + first_value) * args.Dk;
  for (int i = thread_index; i < slice * most_columns; i += threads) {
    const int row = i / most_columns;
    const int column = i % most_columns;
    if (row < values && column < args.Dk) {
      out[int64_t(row) * args.Dk + column] = S[row * state_pitch + column];
    }
  }
}

// clang-format off
instantiate_kernel("gated_delta_prepare_float32", gated_delta_prepare, float)
instantiate_kernel("gated_delta_prepare_float16", gated_delta_prepare, half)
instantiate_kernel("gated_delta_prepare_bfloat16", gated_delta_prepare, bfloat)
instantiate_kernel("gated_delta_scan_float32", gated_delta_scan, float)
instantiate_kernel("gated_delta_scan_float16", gated_delta_scan, half)
instantiate_kernel("gated_delta_scan_bfloat16", gated_delta_scan, bfloat)
