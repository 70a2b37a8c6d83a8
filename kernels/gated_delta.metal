// The gated delta rule, token by token. For each value head with its state S [Dk, Dv], S^T in memory:
//
//   S = exp(g) S    u = beta (v - S^T k)    S = S + k u^T    y = S^T q
//
//   each simdgroup: 4 rows of S^T in registers, over its row's tokens; a lane has every 32nd column
//     q and k are divided by their lengths, q by sqrt(Dk) besides          with delta_normalizes
//     along_k = S^T k, along_q = S^T q                                     sums over the lanes
//     u = beta (v - e^g along_k)    y = e^g along_q + u (k . q)    S = e^g S + k u^T
//
// All in float32, one rounding of y. A simdgroup reads its rows of the state before it writes them: both may be one
// array. Tokens outside of a row's range give zeros and change nothing.
//
// Provenance: Yang, Kautz and Hatamizadeh, arXiv 2412.06464.

#include <metal_stdlib>

#include "kernels/args/gated_delta.h"
#include "kernels/common/delta_gates.h"
#include "kernels/common/instantiate.h"
#include "kernels/common/token_range.h"

using namespace metal;

constant bool delta_few_only [[function_constant(6)]]; // rows of GATED_DELTA_FEW_TOKENS or more are not for this launch

constant constexpr int simd_width = 32;
constant constexpr int state_rows = 4; // of one simdgroup

// PARTS columns of 32 of a row of q or k: lane + 32 i, zeros past its end.
template <typename T, int PARTS>
inline void load_row(thread float (&row)[PARTS], device const T* source, int64_t stride, int count, int lane) {
#pragma clang loop unroll(full)
  for (int i = 0; i < PARTS; ++i) {
    const int column = lane + i * simd_width;
    row[i] = column < count ? float(source[column * stride]) : 0.0f;
  }
}

template <int PARTS>
inline float dot_rows(thread const float (&a)[PARTS], thread const float (&b)[PARTS]) {
  float sum = 0.0f;
#pragma clang loop unroll(full)
  for (int i = 0; i < PARTS; ++i) {
    sum += a[i] * b[i];
  }
  return simd_sum(sum);
}

template <int PARTS>
inline void scale_row(thread float (&row)[PARTS], float factor) {
#pragma clang loop unroll(full)
  for (int i = 0; i < PARTS; ++i) {
    row[i] *= factor;
  }
}

template <typename T, int PARTS>
[[kernel, max_total_threads_per_threadgroup(128)]] void gated_delta(
    device const T* q [[buffer(0)]],
    device const T* k [[buffer(1)]],
    device const T* v [[buffer(2)]],
    device const float* g [[buffer(3), function_constant(delta_has_log_decay)]],
    device const float* beta [[buffer(4), function_constant(delta_has_log_decay)]],
    device const T* a [[buffer(5), function_constant(delta_has_gates)]],
    device const T* b [[buffer(6), function_constant(delta_has_gates)]],
    device const float* A_log [[buffer(7), function_constant(delta_has_gates)]],
    device const float* dt_bias [[buffer(8), function_constant(delta_has_gates)]],
    device const float* state [[buffer(9), function_constant(delta_has_state)]],
    device const int* starts [[buffer(10), function_constant(range_has_starts)]],
    device const int* lengths [[buffer(11), function_constant(range_has_lengths)]],
    device T* y [[buffer(12)]],
    device float* new_state [[buffer(13)]],
    constant GatedDeltaArgs& args [[buffer(14)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane_index [[thread_index_in_simdgroup]]
) {
  const int lane = int(lane_index);
  const int first_row = (int(group.x) * 4 + int(simdgroup)) * state_rows;
  const int head = int(group.y);
  const uint batch = group.z;
  const int key_head = head / (args.Hv / args.Hk);
  if (first_row >= args.Dv) {
    return;
  }
  const int rows = min(state_rows, args.Dv - first_row);

  device const int* row_starts = nullptr;
  device const int* row_lengths = nullptr;
  if (range_has_starts) {
    row_starts = starts;
  }
  if (range_has_lengths) {
    row_lengths = lengths;
  }
  const int2 range = token_range(row_starts, args.starts_stride, row_lengths, args.lengths_stride, batch, args.T);

  if (delta_few_only && range.y - range.x >= GATED_DELTA_FEW_TOKENS) {
    return;
  }

  float S[state_rows][PARTS];
#pragma clang loop unroll(full)
  for (int r = 0; r < state_rows; ++r) {
#pragma clang loop unroll(full)
    for (int i = 0; i < PARTS; ++i) {
      S[r][i] = 0.0f;
    }
    if (delta_has_state && r < rows) {
      const int64_t offset = delta_offset(args.state_strides, batch, head, first_row + r);
      load_row(S[r], state + offset, args.state_strides[3], args.Dk, lane);
    }
  }

  float head_A_log = 0.0f;
  float head_dt_bias = 0.0f;
  if (delta_has_gates) {
    head_A_log = A_log[head * args.A_log_stride];
    head_dt_bias = dt_bias[head * args.dt_bias_stride];
  }
  device T* y_row = y + ((int64_t(batch) * args.T) * args.Hv + head) * args.Dv + first_row;
  const int64_t y_stride = int64_t(args.Hv) * args.Dv;
  for (int t = 0; t < args.T; ++t) {
    float own_y = 0.0f;
    if (t >= range.x && t < range.y) {
      float queries[PARTS];
      float keys[PARTS];
      load_row(queries, q + delta_offset(args.q_strides, batch, t, key_head), args.q_strides[3], args.Dk, lane);
      load_row(keys, k + delta_offset(args.k_strides, batch, t, key_head), args.k_strides[3], args.Dk, lane);
      if (delta_normalizes) {
        const float query_scale = precise::rsqrt(float(args.Dk));
        scale_row(queries, query_scale * precise::rsqrt(dot_rows(queries, queries) + delta_norm_eps));
        scale_row(keys, precise::rsqrt(dot_rows(keys, keys) + delta_norm_eps));
      }
      float2 gate;
      if (delta_has_gates) {
        gate = gate_at(a, b, head_A_log, head_dt_bias, args, batch, t, head);
      } else {
        gate = gate_at(g, beta, 0.0f, 0.0f, args, batch, t, head);
      }
      const float key_dot_query = dot_rows(keys, queries);
      device const T* values = v + delta_offset(args.v_strides, batch, t, head);
#pragma clang loop unroll(full)
      for (int r = 0; r < state_rows; ++r) {
        const float along_k = dot_rows(S[r], keys);
        const float along_q = dot_rows(S[r], queries);
        const int row = first_row + min(r, rows - 1);
        const float u = gate.y * (float(values[row * args.v_strides[3]]) - gate.x * along_k);
        const float result = gate.x * along_q + u * key_dot_query;
        own_y = lane == r ? result : own_y;
#pragma clang loop unroll(full)
        for (int i = 0; i < PARTS; ++i) {
          S[r][i] = gate.x * S[r][i] + u * keys[i];
        }
      }
    }
    if (lane < rows) {
      y_row[t * y_stride + lane] = T(own_y);
    }
  }

  device float* out = new_state + ((int64_t(batch) * args.Hv + head) * args.Dv + first_row) * args.Dk;
#pragma clang loop unroll(full)
  for (int r = 0; r < state_rows; ++r) {
#pragma clang loop unroll(full)
    for (int i = 0; i < PARTS; ++i) {
      const int column = lane + i * simd_width;
      if (r < rows && column < args.Dk) {
        out[int64_t(r) * args.Dk + column] = S[r][i];
      }
    }
  }
}

#define instantiate_parts(dtype, T)                                           \
  instantiate_kernel("gated_delta_" #dtype "_32", gated_delta, T, 1)          \
      instantiate_kernel("gated_delta_" #dtype "_64", gated_delta, T, 2)      \
          instantiate_kernel("gated_delta_" #dtype "_128", gated_delta, T, 4) \
              instantiate_kernel("gated_delta_" #dtype "_256", gated_delta, T, 8)

// clang-format off
instantiate_parts(float32, float)
instantiate_parts(float16, half)
instantiate_parts(bfloat16, bfloat)
