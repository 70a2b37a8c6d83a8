// The gradients of the gated delta rule, by the chunks of gated_delta_chunks.metal, which leaves for each the state S
// before it, U, (I + A)^-1, P and the vectors. With dY and the gradient dS of the state after a chunk:
//
//   dU = P^T dY + D (K dS)     Z = (I + A)^-T dU     dV = beta Z
//   dS before = E[last] dS + Q^T (E dY) - K^T (E dV)
//   X = E (Z S) + z K,  z = strictly lower part of (Z U^T) L     dbeta = rows of (Z V - K X)
//   dQ = G K + E (dY S),  G = lower part of (dY U^T) L
//   dK = G^T Q + D (U dS) - beta X - z^T (beta K)
//
// A decay scales all that came before it, so the logarithm of token t's gets <dS, S> after the chunk, plus what the
// tokens from t on give and take: rows of (Q dQ - dV V).
//
// scan, one threadgroup for each 16 columns of V of each head, goes over the chunks from the last, with its slice of
// dS^T in threadgroup memory; it leaves dV, Z, and dS after each chunk
// scores, one threadgroup for each chunk of each head, leaves G and z in place of P and of the inverse, and Z V in that
// of the decays
// rows, one threadgroup for each chunk of each key head, goes over 32 columns of K at a time and the value heads of
// the key head, adds up dQ and dK in device memory, and takes them through the normalization
//
// All in float32, every sum in one order. Tokens outside of a row's range have gradients of zero and are not read.
//
// Provenance: the transpose of Yang et al., arXiv 2406.06484, with the decays of arXiv 2412.06464.

// clang-format off: the types first that simdgroup_matrix builds on
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
// clang-format on

#include "kernels/common/delta_fragments.h"
#include "kernels/common/instantiate.h"

using namespace metal;

// 16 columns from `column` on of the rows that a chunk has in device memory, Dv wide; zeros past the end.
inline void stage_rows(
    threadgroup float* block, device const float* rows, int tokens, int column, int Dv, int thread_index
) {
  stage_tokens<float, slice>(block, rows, Dv, 1, 0, tokens, column, Dv, thread_index);
}

// acc += block right for the rows of this simdgroup, where `right` is staged as it is or transposed.
template <bool TRANSPOSED, int COLUMNS>
inline void multiply_slice(
    thread simdgroup_float8x8 (&acc)[row_fragments][COLUMNS],
    threadgroup const float* block,
    threadgroup const float* right,
    int right_pitch,
    int right_row,
    int first_row
) {
#pragma clang loop unroll(full)
  for (int kk = 0; kk < slice; kk += fragment_size) {
    simdgroup_float8x8 left[row_fragments];
#pragma clang loop unroll(full)
    for (int i = 0; i < row_fragments; ++i) {
      left[i] = load_fragment<float, false>(block, slice_pitch, first_row + i * fragment_size, kk);
    }
#pragma clang loop unroll(full)
    for (int j = 0; j < COLUMNS; ++j) {
      simdgroup_float8x8 column =
          load_fragment<float, TRANSPOSED>(right, right_pitch, right_row + kk, j * fragment_size);
#pragma clang loop unroll(full)
      for (int i = 0; i < row_fragments; ++i) {
        simdgroup_multiply_accumulate(acc[i][j], left[i], column, acc[i][j]);
      }
    }
  }
}

template <typename T>
[[kernel, max_total_threads_per_threadgroup(128)]] void gated_delta_grad_scan(
    device const T* q [[buffer(0)]],
    device const T* k [[buffer(1)]],
    device const T* dy [[buffer(2)]],
    device const float* dfinal [[buffer(3)]],
    device const float* prepared [[buffer(4)]],
    device const int* starts [[buffer(5), function_constant(range_has_starts)]],
    device const int* lengths [[buffer(6), function_constant(range_has_lengths)]],
    device float* kept_dS [[buffer(7)]],
    device float* kept_Z [[buffer(8)]],
    device float* dv [[buffer(9)]],
    device float* dstate [[buffer(10)]],
    constant GatedDeltaGradArgs& grad_args [[buffer(11)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_number [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]
) {
  threadgroup float dS[slice * state_pitch]; // dS^T: rows are columns of V
  threadgroup float keys[C * slice_pitch];
  threadgroup float queries[C * slice_pitch];
  threadgroup float Z[C * slice_pitch];
  threadgroup float dY[C * slice_pitch];
  threadgroup float vectors[scan_factors];

  constant GatedDeltaArgs& args = grad_args.forward;
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
  device float* dv_head = dv + ((int64_t(batch) * args.T) * args.Hv + head) * args.Dv + first_value;
  const int64_t dv_stride = int64_t(args.Hv) * args.Dv;
  for (int i = thread_index; i < args.T * slice; i += threads) {
    const int t = i / slice;
    if ((t < range.x || t >= range.y) && i % slice < values) {
      dv_head[t * dv_stride + i % slice] = 0.0f;
    }
  }
  for (int i = thread_index; i < slice * most_columns; i += threads) {
    const int row = i / most_columns;
    const int column = i % most_columns;
    float x = 0.0f;
    if (row < values && column < args.Dk) {
      const int64_t offset = delta_offset(grad_args.dfinal_strides, batch, head, first_value + row);
      x = dfinal[offset + column * grad_args.dfinal_strides[3]];
    }
    dS[row * state_pitch + column] = x;
  }

  device const T* head_keys = k + delta_offset(args.k_strides, batch, 0, key_head);
  device const T* head_queries = q + delta_offset(args.q_strides, batch, 0, key_head);
  device const T* head_dy = dy + delta_offset(grad_args.dy_strides, batch, 0, head);
  const int first_row = int(simdgroup) * simdgroup_rows;
  const ScanFactors factors = scan_factors_of(vectors);
  for (int chunk = (range.y - range.x + C - 1) / C; chunk-- > 0;) {
    const int first = range.x + chunk * C;
    const int tokens = min(C, range.y - first);
    device const float* own = prepared + prepared_offset(args, batch, head, chunk);
    for (int i = thread_index; i < scan_factors; i += threads) {
      vectors[i] = own[since_start_at + i];
    }
    device float* kept = kept_dS + chunk_index(args, batch, head, chunk) * args.Dv * args.Dk;
    store_state(kept, args, dS, first_value, values, thread_index);
    stage_tokens<T, slice>(
        dY, head_dy, grad_args.dy_strides[1], grad_args.dy_strides[3], first, tokens, first_value, args.Dv, thread_index
    );

    // D (K dS).
    simdgroup_float8x8 acc[row_fragments][slice_fragments];
    clear_fragments(acc);
    for (int column = 0; column < args.Dk; column += slice) {
      stage_tokens<T, slice>(
          keys, head_keys, args.k_strides[1], args.k_strides[3], first, tokens, column, args.Dk, thread_index
      );
      threadgroup_barrier(mem_flags::mem_threadgroup);
      multiply_slice<true>(acc, keys, dS, state_pitch, column, first_row);
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    store_rows(Z, slice_pitch, acc, first_row);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int i = thread_index; i < C * slice; i += threads) {
      const int row = i / slice;
      Z[row * slice_pitch + i % slice] *= factors.D[row] * factors.keys[row];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    // dU, then Z.
    load_rows(acc, Z, slice_pitch, first_row);
    multiply_triangle<true>(acc, own + scores_at, dY, slice_pitch, first_row);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    store_rows(Z, slice_pitch, acc, first_row);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    clear_fragments(acc);
    multiply_triangle<true>(acc, own + inverse_at, Z, slice_pitch, first_row);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    store_rows(Z, slice_pitch, acc, first_row);
    threadgroup_barrier(mem_flags::mem_threadgroup);

    device float* Z_rows = kept_Z + rows_offset(args, batch, head, chunk) + first_value;
    for (int i = thread_index; i < C * slice; i += threads) {
      const int row = i / slice;
      const int column = i % slice;
      const int place = row * slice_pitch + column;
      const float value_gradient = factors.strengths[row] * Z[place];
      if (row < tokens && column < values) {
        Z_rows[int64_t(row) * args.Dv + column] = Z[place];
        dv_head[(first + row) * dv_stride + column] = value_gradient;
      }
      Z[place] = -factors.E[row] * factors.keys[row] * value_gradient;
      dY[place] *= factors.E[row] * factors.queries[row];
    }
    const float whole_decay = factors.E[C - 1];
    for (int i = thread_index; i < slice * most_columns; i += threads) {
      dS[i / most_columns * state_pitch + i % most_columns] *= whole_decay;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    // dS^T += (E dY)^T Q - (E dV)^T K: each simdgroup has one fragment of each block of 16 columns.
    const int value_row = int(simdgroup / 2) * fragment_size;
    const int key_column = int(simdgroup % 2) * fragment_size;
    for (int column = 0; column < args.Dk; column += slice) {
      stage_tokens<T, slice>(
          keys, head_keys, args.k_strides[1], args.k_strides[3], first, tokens, column, args.Dk, thread_index
      );
      stage_tokens<T, slice>(
          queries, head_queries, args.q_strides[1], args.q_strides[3], first, tokens, column, args.Dk, thread_index
      );
      threadgroup_barrier(mem_flags::mem_threadgroup);
      simdgroup_float8x8 sum = load_fragment<float, false>(dS, state_pitch, value_row, column + key_column);
      for (int kk = 0; kk < C; kk += fragment_size) {
        simdgroup_float8x8 left = load_fragment<float, true>(dY, slice_pitch, value_row, kk);
        simdgroup_float8x8 right = load_fragment<float, false>(queries, slice_pitch, kk, key_column);
        simdgroup_multiply_accumulate(sum, left, right, sum);
        left = load_fragment<float, true>(Z, slice_pitch, value_row, kk);
        right = load_fragment<float, false>(keys, slice_pitch, kk, key_column);
        simdgroup_multiply_accumulate(sum, left, right, sum);
      }
      simdgroup_store(sum, dS + (value_row * state_pitch + column + key_column), state_pitch);
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
  }
  device float* out = dstate + (int64_t(batch) * args.Hv + head) * args.Dv * args.Dk;
  store_state(out, args, dS, first_value, values, thread_index);
}

template <typename T>
[[kernel, max_total_threads_per_threadgroup(128)]] void gated_delta_grad_scores(
    device const T* v [[buffer(0)]],
    device const T* dy [[buffer(1)]],
    device const float* kept_U [[buffer(2)]],
    device const float* kept_Z [[buffer(3)]],
    device const int* starts [[buffer(4), function_constant(range_has_starts)]],
    device const int* lengths [[buffer(5), function_constant(range_has_lengths)]],
    device float* prepared [[buffer(6)]],
    constant GatedDeltaGradArgs& grad_args [[buffer(7)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_number [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]
) {
  static_assert(C * matrix_pitch <= 4 * C * slice_pitch, "the matrix takes the place of the staged blocks");
  threadgroup float memory[4 * C * slice_pitch];
  threadgroup float decay[C];
  threadgroup float value_dots[C];

  constant GatedDeltaArgs& args = grad_args.forward;
  const int thread_index = int(thread_number);
  const int head = int(group.y);
  const uint batch = group.z;
  device const int* row_starts = nullptr;
  device const int* row_lengths = nullptr;
  if (range_has_starts) {
    row_starts = starts;
  }
  if (range_has_lengths) {
    row_lengths = lengths;
  }
  const int2 range = token_range(row_starts, args.starts_stride, row_lengths, args.lengths_stride, batch, args.T);
  const int chunk = int(group.x);
  const int first = range.x + chunk * C;
  const int tokens = min(C, range.y - first);
  if (tokens <= 0) {
    return;
  }
  device float* own = prepared + prepared_offset(args, batch, head, chunk);
  if (thread_index < C) {
    decay[thread_index] = own[decays_at + thread_index];
  }

  // dY U^T and Z U^T of this simdgroup's rows, and half a row of Z V.
  threadgroup float* dY = memory;
  threadgroup float* Z = dY + C * slice_pitch;
  threadgroup float* U = Z + C * slice_pitch;
  threadgroup float* V = U + C * slice_pitch;
  device const T* head_values = v + delta_offset(args.v_strides, batch, 0, head);
  device const T* head_dy = dy + delta_offset(grad_args.dy_strides, batch, 0, head);
  device const float* U_rows = kept_U + rows_offset(args, batch, head, chunk);
  device const float* Z_rows = kept_Z + rows_offset(args, batch, head, chunk);
  const int first_row = int(simdgroup) * simdgroup_rows;
  const int own_row = thread_index / 2;
  const int own_half = thread_index % 2;
  simdgroup_float8x8 of_outputs[row_fragments][C / fragment_size];
  simdgroup_float8x8 of_solution[row_fragments][C / fragment_size];
  clear_fragments(of_outputs);
  clear_fragments(of_solution);
  float along_values = 0.0f;
  for (int column = 0; column < args.Dv; column += slice) {
    const int64_t dy_column_stride = grad_args.dy_strides[3];
    stage_tokens<T, slice>(
        dY, head_dy, grad_args.dy_strides[1], dy_column_stride, first, tokens, column, args.Dv, thread_index
    );
    stage_tokens<T, slice>(
        V, head_values, args.v_strides[1], args.v_strides[3], first, tokens, column, args.Dv, thread_index
    );
    stage_rows(Z, Z_rows, tokens, column, args.Dv, thread_index);
    stage_rows(U, U_rows, tokens, column, args.Dv, thread_index);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int i = 0; i < slice / 2; ++i) {
      const int place = own_row * slice_pitch + own_half * (slice / 2) + i;
      along_values += Z[place] * V[place];
    }
    multiply_slice<true>(of_outputs, dY, U, slice_pitch, 0, first_row);
    multiply_slice<true>(of_solution, Z, U, slice_pitch, 0, first_row);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  along_values += simd_shuffle_xor(along_values, ushort(1));
  if (own_half == 0) {
    value_dots[own_row] = along_values;
  }

  // One thread to a column.
  threadgroup float* matrix = memory;
  store_rows(matrix, matrix_pitch, of_outputs, first_row);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (thread_index < C) {
    own[decays_at + thread_index] = value_dots[thread_index]; // by the thread that read the decay
    float weight = 1.0f;
    for (int i = 0; i < C; ++i) {
      weight *= i > thread_index ? decay[i] : 1.0f;
      const float x = matrix[i * matrix_pitch + thread_index] * weight;
      own[scores_at + i * C + thread_index] = i >= thread_index ? x : 0.0f;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  store_rows(matrix, matrix_pitch, of_solution, first_row);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (thread_index < C) {
    float weight = 1.0f;
    for (int i = 0; i < C; ++i) {
      weight *= i > thread_index ? decay[i] : 1.0f;
      const float x = matrix[i * matrix_pitch + thread_index] * weight;
      own[inverse_at + i * C + thread_index] = i > thread_index ? x : 0.0f;
    }
  }
}

constant constexpr int row_columns = 32; // of K, for gated_delta_grad_rows
constant constexpr int row_pitch = row_columns + 4;
constant constexpr int own_columns = row_columns / 2; // of them for each of a row's two threads

// Multiplies a staged block's rows by factors.
template <int COLUMNS>
inline void scale_rows(threadgroup float* block, threadgroup const float* factors, int thread_index) {
  for (int i = thread_index; i < C * COLUMNS; i += threads) {
    block[i / COLUMNS * (COLUMNS + 4) + i % COLUMNS] *= factors[i / COLUMNS];
  }
}

// slice rows of a head's state from `row` on, 32 columns from `column` on; zeros past the end.
inline void stage_state(
    threadgroup float* block,
    device const float* state,
    constant GatedDeltaArgs& args,
    int row,
    int column,
    int thread_index
) {
  for (int i = thread_index; i < slice * row_columns; i += threads) {
    const int r = row + i / row_columns;
    const int c = column + i % row_columns;
    float x = 0.0f;
    if (r < args.Dv && c < args.Dk) {
      x = state[int64_t(r) * args.Dk + c];
    }
    block[i / row_columns * row_pitch + i % row_columns] = x;
  }
}

// Where a thread's half row of a block begins.
inline int own_place(int thread_index) {
  return thread_index / 2 * row_pitch + thread_index % 2 * own_columns;
}

// Adds a thread's half row of gradients to those in device memory, or begins them.
inline void add_own(
    device float* row, thread const float (&gradient)[own_columns], int column, int Dk, bool is_first, int thread_index
) {
  for (int i = 0; i < own_columns; ++i) {
    const int c = column + thread_index % 2 * own_columns + i;
    if (c < Dk) {
      row[c] = is_first ? gradient[i] : row[c] + gradient[i];
    }
  }
}

// Takes the gradient of factor x / |x| to that of x: factor dx - factor^2 scale (x . dx) x, where `along` is the dot
// product with the normalized row.
template <typename T>
inline void through_norm(
    device float* gradient,
    device const T* x,
    int64_t column_stride,
    int Dk,
    float factor,
    float scale,
    float along,
    int thread_index
) {
  for (int block = 0; block < Dk; block += row_columns) {
    for (int i = 0; i < own_columns; ++i) {
      const int c = block + thread_index % 2 * own_columns + i;
      if (c < Dk) {
        gradient[c] = factor * gradient[c] - factor * factor * scale * along * float(x[c * column_stride]);
      }
    }
  }
}

template <typename T>
[[kernel, max_total_threads_per_threadgroup(128)]] void gated_delta_grad_rows(
    device const T* q [[buffer(0)]],
    device const T* k [[buffer(1)]],
    device const T* dy [[buffer(2)]],
    device const float* prepared [[buffer(3)]],
    device const float* kept_S [[buffer(4)]],
    device const float* kept_dS [[buffer(5)]],
    device const float* kept_U [[buffer(6)]],
    device const float* kept_Z [[buffer(7)]],
    device const int* starts [[buffer(8), function_constant(range_has_starts)]],
    device const int* lengths [[buffer(9), function_constant(range_has_lengths)]],
    device float* dq [[buffer(10)]],
    device float* dk [[buffer(11)]],
    device float* dg [[buffer(12)]],
    device float* dbeta [[buffer(13)]],
    constant GatedDeltaGradArgs& grad_args [[buffer(14)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_number [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]
) {
  constexpr int block_size = C * row_pitch;
  static_assert(3 * C * slice_pitch + 2 * slice * row_pitch <= 3 * block_size, "the blocks take turns in memory");
  threadgroup float memory[3 * block_size];
  threadgroup float vectors[scan_factors + C];
  threadgroup float log_decays[C];
  threadgroup float sums[4];

  constant GatedDeltaArgs& args = grad_args.forward;
  const int thread_index = int(thread_number);
  const int key_head = int(group.y);
  const uint batch = group.z;
  const int heads = args.Hv / args.Hk;
  device const int* row_starts = nullptr;
  device const int* row_lengths = nullptr;
  if (range_has_starts) {
    row_starts = starts;
  }
  if (range_has_lengths) {
    row_lengths = lengths;
  }
  const int2 range = token_range(row_starts, args.starts_stride, row_lengths, args.lengths_stride, batch, args.T);
  const int chunk = int(group.x);
  const int64_t first_token = int64_t(batch) * args.T;

  // Zeros for what lies outside of the range among as many tokens by their number.
  for (int t = chunk * C; t < min(args.T, (chunk + 1) * C); ++t) {
    if (t < range.x || t >= range.y) {
      for (int i = thread_index; i < args.Dk; i += threads) {
        dq[((first_token + t) * args.Hk + key_head) * args.Dk + i] = 0.0f;
        dk[((first_token + t) * args.Hk + key_head) * args.Dk + i] = 0.0f;
      }
      for (int i = thread_index; i < heads; i += threads) {
        dg[(first_token + t) * args.Hv + key_head * heads + i] = 0.0f;
        dbeta[(first_token + t) * args.Hv + key_head * heads + i] = 0.0f;
      }
    }
  }
  const int first = range.x + chunk * C;
  const int tokens = min(C, range.y - first);
  if (tokens <= 0) {
    return;
  }

  // First the rows that meet the states, then keys, queries and scaled keys, whose place the results take.
  threadgroup float* dY = memory;
  threadgroup float* Z = dY + C * slice_pitch;
  threadgroup float* U = Z + C * slice_pitch;
  threadgroup float* S = U + C * slice_pitch;
  threadgroup float* dS = S + slice * row_pitch;
  threadgroup float* keys = memory;
  threadgroup float* queries = memory + block_size;
  threadgroup float* block = memory + 2 * block_size;

  device const T* head_keys = k + delta_offset(args.k_strides, batch, 0, key_head);
  device const T* head_queries = q + delta_offset(args.q_strides, batch, 0, key_head);
  const int first_row = int(simdgroup) * simdgroup_rows;
  const int own_row = thread_index / 2;
  const int place = own_place(thread_index);
  const int64_t own_token = first_token + first + min(own_row, tokens - 1);
  device float* dq_row = dq + (own_token * args.Hk + key_head) * args.Dk;
  device float* dk_row = dk + (own_token * args.Hk + key_head) * args.Dk;
  const int own_width = own_row < tokens ? args.Dk : 0;
  const ScanFactors factors = scan_factors_of(vectors);
  threadgroup float* along_values = vectors + scan_factors;
  float all_along_queries = 0.0f; // of this thread's half row, over all heads
  float all_along_keys = 0.0f;
  for (int member = 0; member < heads; ++member) {
    const int head = key_head * heads + member;
    device const float* own = prepared + prepared_offset(args, batch, head, chunk);
    device const T* head_dy = dy + delta_offset(grad_args.dy_strides, batch, 0, head);
    device const float* U_rows = kept_U + rows_offset(args, batch, head, chunk);
    device const float* Z_rows = kept_Z + rows_offset(args, batch, head, chunk);
    device const float* head_S = kept_S + kept_state_offset(args, batch, head, chunk);
    device const float* next_S = kept_S + kept_state_offset(args, batch, head, chunk + 1);
    device const float* head_dS = kept_dS + chunk_index(args, batch, head, chunk) * args.Dv * args.Dk;
    for (int i = thread_index; i < scan_factors + C; i += threads) {
      vectors[i] = own[since_start_at + i];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    float along_queries = 0.0f;
    float along_X = 0.0f;
    for (int column = 0; column < args.Dk; column += row_columns) {
      simdgroup_float8x8 query_rows[row_fragments][row_columns / fragment_size];
      simdgroup_float8x8 X_rows[row_fragments][row_columns / fragment_size];
      simdgroup_float8x8 key_rows[row_fragments][row_columns / fragment_size];
      clear_fragments(query_rows);
      clear_fragments(X_rows);
      clear_fragments(key_rows);

      // (E dY) S, (E Z) S and (D U) dS.
      for (int value = 0; value < args.Dv; value += slice) {
        const int64_t dy_column_stride = grad_args.dy_strides[3];
        stage_tokens<T, slice>(
            dY, head_dy, grad_args.dy_strides[1], dy_column_stride, first, tokens, value, args.Dv, thread_index
        );
        stage_rows(Z, Z_rows, tokens, value, args.Dv, thread_index);
        stage_rows(U, U_rows, tokens, value, args.Dv, thread_index);
        scale_rows<slice>(dY, factors.E, thread_index);
        scale_rows<slice>(Z, factors.E, thread_index);
        scale_rows<slice>(U, factors.D, thread_index);
        stage_state(S, head_S, args, value, column, thread_index);
        stage_state(dS, head_dS, args, value, column, thread_index);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        multiply_slice<false>(query_rows, dY, S, row_pitch, 0, first_row);
        multiply_slice<false>(X_rows, Z, S, row_pitch, 0, first_row);
        multiply_slice<false>(key_rows, U, dS, row_pitch, 0, first_row);
        threadgroup_barrier(mem_flags::mem_threadgroup);
      }

      // G K, z K, and G^T Q - z^T (beta K).
      stage_tokens<T, row_columns>(
          keys, head_keys, args.k_strides[1], args.k_strides[3], first, tokens, column, args.Dk, thread_index
      );
      stage_tokens<T, row_columns>(
          queries, head_queries, args.q_strides[1], args.q_strides[3], first, tokens, column, args.Dk, thread_index
      );
      scale_rows<row_columns>(keys, factors.keys, thread_index);
      scale_rows<row_columns>(queries, factors.queries, thread_index);
      for (int i = thread_index; i < C * row_columns; i += threads) {
        const int at = i / row_columns * row_pitch + i % row_columns;
        block[at] = -factors.strengths[i / row_columns] * keys[at];
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      multiply_triangle<false>(query_rows, own + scores_at, keys, row_pitch, first_row);
      multiply_triangle<false>(X_rows, own + inverse_at, keys, row_pitch, first_row);
      multiply_triangle<true>(key_rows, own + scores_at, queries, row_pitch, first_row);
      multiply_triangle<true>(key_rows, own + inverse_at, block, row_pitch, first_row);
      threadgroup_barrier(mem_flags::mem_threadgroup);

      // A thread has half a row of each result.
      float own_gradient[own_columns];
      float own_X[own_columns];
      store_rows(block, row_pitch, query_rows, first_row);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      for (int i = 0; i < own_columns; ++i) {
        own_gradient[i] = block[place + i];
        along_queries += queries[place + i] * own_gradient[i];
      }
      add_own(dq_row, own_gradient, column, own_width, member == 0, thread_index);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      store_rows(block, row_pitch, X_rows, first_row);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      for (int i = 0; i < own_columns; ++i) {
        own_X[i] = block[place + i];
        along_X += keys[place + i] * own_X[i];
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      store_rows(block, row_pitch, key_rows, first_row);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      for (int i = 0; i < own_columns; ++i) {
        own_gradient[i] = block[place + i] - factors.strengths[own_row] * own_X[i];
        all_along_keys += keys[place + i] * own_gradient[i];
      }
      add_own(dk_row, own_gradient, column, own_width, member == 0, thread_index);
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    all_along_queries += along_queries;
    along_queries += simd_shuffle_xor(along_queries, ushort(1));
    along_X += simd_shuffle_xor(along_X, ushort(1));
    if (thread_index % 2 == 0) {
      log_decays[own_row] = along_queries - factors.strengths[own_row] * along_values[own_row];
      if (own_row < tokens) {
        dbeta[own_token * args.Hv + head] = along_values[own_row] - along_X;
      }
    }

    float along_state = 0.0f; // <dS, S> after the chunk
    for (int i = thread_index; i < args.Dv * args.Dk; i += threads) {
      along_state += head_dS[i] * next_S[i];
    }
    along_state = simd_sum(along_state);
    if (thread_index % 32 == 0) {
      sums[simdgroup] = along_state;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_index < tokens) {
      float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
      for (int i = C - 1; i >= thread_index; --i) {
        sum += log_decays[i];
      }
      dg[(first_token + first + thread_index) * args.Hv + head] = sum;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }

  if (delta_normalizes && own_row < tokens) {
    all_along_queries += simd_shuffle_xor(all_along_queries, ushort(1));
    all_along_keys += simd_shuffle_xor(all_along_keys, ushort(1));
    const int64_t token = first + own_row;
    device const T* query = head_queries + token * args.q_strides[1];
    device const T* key = head_keys + token * args.k_strides[1];
    const float query_factor = factors.queries[own_row];
    const float key_factor = factors.keys[own_row];
    through_norm(
        dq_row, query, args.q_strides[3], args.Dk, query_factor, float(args.Dk), all_along_queries, thread_index
    );
    through_norm(dk_row, key, args.k_strides[3], args.Dk, key_factor, 1.0f, all_along_keys, thread_index);
  }
}

// clang-format off
instantiate_kernel("gated_delta_grad_scan_float32", gated_delta_grad_scan, float)
instantiate_kernel("gated_delta_grad_scan_float16", gated_delta_grad_scan, half)
instantiate_kernel("gated_delta_grad_scan_bfloat16", gated_delta_grad_scan, bfloat)
instantiate_kernel("gated_delta_grad_scores_float32", gated_delta_grad_scores, float)
instantiate_kernel("gated_delta_grad_scores_float16", gated_delta_grad_scores, half)
instantiate_kernel("gated_delta_grad_scores_bfloat16", gated_delta_grad_scores, bfloat)
instantiate_kernel("gated_delta_grad_rows_float32", gated_delta_grad_rows, float)
instantiate_kernel("gated_delta_grad_rows_float16", gated_delta_grad_rows, half)
instantiate_kernel("gated_delta_grad_rows_bfloat16", gated_delta_grad_rows, bfloat)
