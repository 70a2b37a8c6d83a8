// The gated delta rule by chunks on the matrix units through MPP's matmul2d: what gated_delta_chunks.metal computes, by
// the same launches and from the same parts. The inverse is no product and is taken as there.
//
// All operands are cooperative tensors of 16 x 32 x 16 products on one simdgroup, as in attention_tensorops.metal,
// filled from where they are by what their slots say:
//   prepare: K K^T and Q K^T, each simdgroup 16 rows by 64, operands in their own dtype
//   scan, for each 32 columns of V: K S and Q S, U and Y, each simdgroup 16 tokens; K^T (D U), each simdgroup every
//     fourth strip of 16 columns of K. S is in threadgroup memory, a row for each column of K. Operands are float32.
//
// float32 operands are truncated to tf32. S itself stays whole: what is truncated is its copy in a product.
//
// Provenance: the shape of the products is MLX's (steel_gemm_fused_nax).

// clang-format off: the types first that MPP builds on
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
// clang-format on

#include "kernels/common/cooperative_slots.h"
#include "kernels/common/delta_chunks.h"
#include "kernels/common/instantiate.h"
#include "kernels/common/vector_io.h"

using namespace metal;

// Whether runs of four columns that start at a multiple of four are contiguous and aligned in q and k.
constant bool delta_vector [[function_constant(9)]];

constant constexpr int values_slice = 32; // columns of V
constant constexpr int values_pitch = values_slice + 4;
constant constexpr int depth = 16; // of a product

constexpr mpp::tensor_ops::matmul2d_descriptor delta_product(bool by_rows) {
  return mpp::tensor_ops::matmul2d_descriptor(
      16, 32, depth, false, by_rows, true, mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate
  );
}

// Rows by the rows of another matrix, or by its columns.
template <bool BY_ROWS>
using DeltaProduct = mpp::tensor_ops::matmul2d<delta_product(BY_ROWS), execution_simdgroup>;

// The tokens of a chunk of one head, as fill_cooperative reads them: zeros past the last and past the columns.
template <typename T>
struct TokenRows {
  device const T* first;
  int64_t token_stride;
  int64_t column_stride;
  int tokens;
  int columns;

  float4 load_four(int row, int column) const thread {
    const int count = row < tokens ? columns - column : 0;
    device const T* p = first + (row * token_stride + column * column_stride);
    return to_float4<T>(delta_vector && count >= 4 ? load4(p) : load4(p, column_stride, count));
  }

  float load_one(int row, int column) const thread {
    return row < tokens && column < columns ? float(first[row * token_stride + column * column_stride]) : 0.0f;
  }
};

template <typename T>
inline TokenRows<T> token_rows(
    device const T* data, constant int64_t* strides, uint batch, int first, int head, int tokens, int columns
) {
  return {data + delta_offset(strides, batch, first, head), strides[1], strides[3], tokens, columns};
}

// Their transpose.
template <typename T>
struct TokenColumns {
  TokenRows<T> rows;

  float4 load_four(int row, int column) const thread {
    return float4(
        load_one(row, column), load_one(row, column + 1), load_one(row, column + 2), load_one(row, column + 3)
    );
  }

  float load_one(int row, int column) const thread {
    return rows.load_one(column, row);
  }
};

// A C x C matrix of a prepared chunk.
struct PreparedMatrix {
  device const float* matrix;

  float4 load_four(int row, int column) const thread {
    return load4(matrix + (row * C + column));
  }

  float load_one(int row, int column) const thread {
    return matrix[row * C + column];
  }
};

// 32 columns in threadgroup memory.
struct StagedValues {
  threadgroup const float* block;

  float4 load_four(int row, int column) const thread {
    return *reinterpret_cast<threadgroup const float4*>(block + (row * values_pitch + column));
  }

  float load_one(int row, int column) const thread {
    return block[row * values_pitch + column];
  }
};

// The same, each row by its factors.
struct ScaledValues {
  StagedValues values;
  threadgroup const float* factors;
  threadgroup const float* more_factors;

  float4 load_four(int row, int column) const thread {
    return values.load_four(row, column) * (factors[row] * more_factors[row]);
  }

  float load_one(int row, int column) const thread {
    return values.load_one(row, column) * (factors[row] * more_factors[row]);
  }
};

inline void clear_slots(thread float (&slots)[cooperative_slots]) {
#pragma clang loop unroll(full)
  for (ushort i = 0; i < cooperative_slots; ++i) {
    slots[i] = 0.0f;
  }
}

// sums += rows [row, row + 16) of left, columns [0, columns), times 32 rows of right from `other` on, or 32 columns.
template <bool BY_ROWS, typename T, typename Left, typename Right>
inline void add_product(
    thread float (&sums)[cooperative_slots],
    thread const Left& left_matrix,
    int row,
    thread const Right& right_matrix,
    int other,
    int columns
) {
  DeltaProduct<BY_ROWS> op;
  auto left = op.template get_left_input_cooperative_tensor<T, T, float>();
  auto right = op.template get_right_input_cooperative_tensor<T, T, float>();
  auto acc = op.template get_destination_cooperative_tensor<
      remove_addrspace_t<decltype(left)>,
      remove_addrspace_t<decltype(right)>,
      float>();
  set_slots(acc, sums);
  for (int column = 0; column < columns; column += depth) {
    fill_cooperative<T>(left, left_matrix, row, column);
    fill_cooperative<T>(right, right_matrix, BY_ROWS ? other : column, BY_ROWS ? column : other);
    op.run(left, right, acc);
  }
#pragma clang loop unroll(full)
  for (ushort i = 0; i < cooperative_slots; ++i) {
    sums[i] = acc[i];
  }
}

// Where the slots of a product's sums are.
struct SlotPlaces {
  int rows[cooperative_slots];
  int columns[cooperative_slots];
  bool are_there[cooperative_slots];
};

template <bool BY_ROWS, typename T>
inline SlotPlaces slot_places() {
  DeltaProduct<BY_ROWS> op;
  auto left = op.template get_left_input_cooperative_tensor<T, T, float>();
  auto right = op.template get_right_input_cooperative_tensor<T, T, float>();
  auto acc = op.template get_destination_cooperative_tensor<
      remove_addrspace_t<decltype(left)>,
      remove_addrspace_t<decltype(right)>,
      float>();
  SlotPlaces places;
#pragma clang loop unroll(full)
  for (ushort i = 0; i < cooperative_slots; ++i) {
    const auto at = acc.get_multidimensional_index(i);
    places.rows[i] = at[1];
    places.columns[i] = at[0];
    places.are_there[i] = acc.is_valid_element(i);
  }
  return places;
}

inline void store_slots(
    threadgroup float* block, int pitch, thread const float (&sums)[cooperative_slots], thread const SlotPlaces& places
) {
#pragma clang loop unroll(full)
  for (ushort i = 0; i < cooperative_slots; ++i) {
    if (places.are_there[i]) {
      block[places.rows[i] * pitch + places.columns[i]] = sums[i];
    }
  }
}

template <typename T>
[[kernel, max_total_threads_per_threadgroup(128)]] void gated_delta_tensorops_prepare(
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
  threadgroup float matrix[C * matrix_pitch];
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
  if (tokens <= 0 || range.y - range.x < GATED_DELTA_FEW_TOKENS) {
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

  const TokenRows<T> keys = token_rows(k, args.k_strides, batch, first, key_head, tokens, args.Dk);
  const TokenRows<T> queries = token_rows(q, args.q_strides, batch, first, key_head, tokens, args.Dk);
  const int first_row = int(simdgroup) * simdgroup_rows;
  float key_products[2][cooperative_slots];
  float query_products[2][cooperative_slots];
#pragma clang loop unroll(full)
  for (int half = 0; half < 2; ++half) {
    clear_slots(key_products[half]);
    clear_slots(query_products[half]);
    add_product<true, T>(key_products[half], keys, first_row, keys, half * 32, args.Dk);
    add_product<true, T>(query_products[half], queries, first_row, keys, half * 32, args.Dk);
  }

  // The squares of a row, half by each of two threads.
  const int own_row = thread_index / 2;
  float2 squares(0.0f);
  if (delta_normalizes && own_row < tokens) {
    for (int column = thread_index % 2 * 4; column < args.Dk; column += 8) {
      const float4 key = keys.load_four(own_row, column);
      const float4 query = queries.load_four(own_row, column);
      squares += float2(dot(key, key), dot(query, query));
    }
  }
  squares += float2(simd_shuffle_xor(squares.x, ushort(1)), simd_shuffle_xor(squares.y, ushort(1)));
  if (thread_index % 2 == 0) {
    const float2 factors = length_factors(squares, args.Dk);
    vectors.key_factors[own_row] = factors.x;
    vectors.query_factors[own_row] = factors.y;
  }

  const SlotPlaces places = slot_places<true, T>();
  threadgroup float* own_rows = matrix + first_row * matrix_pitch;
  device float* out = prepared + prepared_offset(args, batch, head, int(group.x));
  store_slots(own_rows, matrix_pitch, key_products[0], places);
  store_slots(own_rows + 32, matrix_pitch, key_products[1], places);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  invert_chunk(matrix, vectors, out, thread_index);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  store_slots(own_rows, matrix_pitch, query_products[0], places);
  store_slots(own_rows + 32, matrix_pitch, query_products[1], places);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  store_scores(matrix, vectors, out, thread_index);
}

template <typename T>
[[kernel, max_total_threads_per_threadgroup(128)]] void gated_delta_tensorops_scan(
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
  threadgroup float4 state_memory[most_columns * values_pitch / 4];
  threadgroup float4 value_memory[C * values_pitch / 4];
  threadgroup float vector_memory[scan_factors];
  threadgroup float* S = reinterpret_cast<threadgroup float*>(state_memory);
  threadgroup float* U = reinterpret_cast<threadgroup float*>(value_memory);

  const int thread_index = int(thread_number);
  const int first_value = int(group.x) * values_slice;
  const int head = int(group.y);
  const uint batch = group.z;
  const int key_head = head / (args.Hv / args.Hk);
  const int values = min(values_slice, args.Dv - first_value);
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
  for (int i = thread_index; i < args.T * values_slice; i += threads) {
    const int t = i / values_slice;
    if ((t < range.x || t >= range.y) && i % values_slice < values) {
      y_head[t * y_stride + i % values_slice] = T(0.0f);
    }
  }
  for (int i = thread_index; i < values_slice * most_columns; i += threads) {
    const int row = i / most_columns; // of S^T, as it is in device memory
    const int column = i % most_columns;
    float x = 0.0f;
    if (delta_has_state && row < values && column < args.Dk) {
      const int64_t offset = delta_offset(args.state_strides, batch, head, first_value + row);
      x = state[offset + column * args.state_strides[3]];
    }
    S[column * values_pitch + row] = x;
  }

  device const T* head_values = v + delta_offset(args.v_strides, batch, 0, head);
  const int first_row = int(simdgroup) * simdgroup_rows;
  const ScanFactors factors = scan_factors_of(vector_memory);
  const SlotPlaces places = slot_places<false, float>();
  for (int chunk = 0; range.x + chunk * C < range.y; ++chunk) {
    const int first = range.x + chunk * C;
    const int tokens = min(C, range.y - first);
    device const float* own = prepared + prepared_offset(args, batch, head, chunk);
    for (int i = thread_index; i < scan_factors; i += threads) {
      vector_memory[i] = own[since_start_at + i];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    // beta (V - E (K S)) and E (Q S).
    const TokenRows<T> keys = token_rows(k, args.k_strides, batch, first, key_head, tokens, args.Dk);
    const TokenRows<T> queries = token_rows(q, args.q_strides, batch, first, key_head, tokens, args.Dk);
    float from_keys[cooperative_slots];
    float outputs[cooperative_slots];
    clear_slots(from_keys);
    clear_slots(outputs);
    add_product<false, float>(from_keys, keys, first_row, StagedValues{S}, 0, args.Dk);
    add_product<false, float>(outputs, queries, first_row, StagedValues{S}, 0, args.Dk);
#pragma clang loop unroll(full)
    for (ushort i = 0; i < cooperative_slots; ++i) {
      if (places.are_there[i]) {
        const int row = first_row + places.rows[i];
        const int column = places.columns[i];
        float value = 0.0f;
        if (row < tokens && column < values) {
          value = float(head_values[(first + row) * args.v_strides[1] + (first_value + column) * args.v_strides[3]]);
        }
        from_keys[i] = factors.strengths[row] * (value - factors.E[row] * factors.keys[row] * from_keys[i]);
        outputs[i] *= factors.E[row] * factors.queries[row];
      }
    }
    threadgroup float* own_rows = U + first_row * values_pitch;
    store_slots(own_rows, values_pitch, from_keys, places);
    threadgroup_barrier(mem_flags::mem_threadgroup);

    float own_U[cooperative_slots];
    clear_slots(own_U);
    const int lower_columns = first_row + simdgroup_rows;
    add_product<false, float>(own_U, PreparedMatrix{own + inverse_at}, first_row, StagedValues{U}, 0, lower_columns);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    store_slots(own_rows, values_pitch, own_U, places);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    add_product<false, float>(outputs, PreparedMatrix{own + scores_at}, first_row, StagedValues{U}, 0, lower_columns);
#pragma clang loop unroll(full)
    for (ushort i = 0; i < cooperative_slots; ++i) {
      const int row = first_row + places.rows[i];
      if (places.are_there[i] && row < tokens && places.columns[i] < values) {
        y_head[(first + row) * y_stride + places.columns[i]] = T(outputs[i]);
      }
    }

    // S = E[last] S + K^T (D U), by strips of 16 columns of K.
    const float whole_decay = factors.E[C - 1];
    for (int column = first_row; column < args.Dk; column += C) {
      threadgroup float* strip = S + column * values_pitch;
      float sums[cooperative_slots];
#pragma clang loop unroll(full)
      for (ushort i = 0; i < cooperative_slots; ++i) {
        sums[i] = 0.0f;
        if (places.are_there[i]) {
          sums[i] = whole_decay * strip[places.rows[i] * values_pitch + places.columns[i]];
        }
      }
      const ScaledValues decayed{{U}, factors.D, factors.keys};
      add_product<false, float>(sums, TokenColumns<T>{keys}, column, decayed, 0, C);
      store_slots(strip, values_pitch, sums, places);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }

  device float* out = new_state + ((int64_t(batch) * args.Hv + head) * args.Dv + first_value) * args.Dk;
  for (int i = thread_index; i < values_slice * most_columns; i += threads) {
    const int row = i / most_columns;
    const int column = i % most_columns;
    if (row < values && column < args.Dk) {
      out[int64_t(row) * args.Dk + column] = S[column * values_pitch + row];
    }
  }
}

// clang-format off
instantiate_kernel("gated_delta_tensorops_prepare_float32", gated_delta_tensorops_prepare, float)
instantiate_kernel("gated_delta_tensorops_prepare_float16", gated_delta_tensorops_prepare, half)
instantiate_kernel("gated_delta_tensorops_prepare_bfloat16", gated_delta_tensorops_prepare, bfloat)
instantiate_kernel("gated_delta_tensorops_scan_float32", gated_delta_tensorops_scan, float)
instantiate_kernel("gated_delta_tensorops_scan_float16", gated_delta_tensorops_scan, half)
instantiate_kernel("gated_delta_tensorops_scan_bfloat16", gated_delta_tensorops_scan, bfloat)
