// The gradients of attention on the matrix units through MPP's matmul2d: what attention_grad.metal computes for queries
// and for keys, its delta and its sums over masks and sinks being taken as they are. float32 operands are truncated to
// tf32.
//
// Strips, parts and operands are those of attention_tensorops.metal; dk and dv are twice the sums, so that their
// columns are divided among twice the simdgroups.

// clang-format off: the types first that MPP builds on
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
// clang-format on

#include "kernels/common/attention_cooperative.h"
#include "kernels/common/attention_gradients.h"
#include "kernels/common/instantiate.h"

using namespace metal;

constant bool attention_of_prefix [[function_constant(9)]];   // the keys are those of the prefix
constant bool attention_has_depth [[function_constant(10)]];  // D > 0
constant bool attention_has_values [[function_constant(11)]]; // Dv > 0

inline void fill_slots(thread float (&slots)[cooperative_slots], float value) {
#pragma clang loop unroll(full)
  for (ushort i = 0; i < cooperative_slots; ++i) {
    slots[i] = value;
  }
}

template <typename T, int HEAD, int STRIPS, int PARTS>
[[kernel, max_total_threads_per_threadgroup(STRIPS * PARTS * 32)]] void attention_grad_queries(
    device const T* q [[buffer(0), function_constant(attention_has_pairs)]],
    device const T* k [[buffer(1), function_constant(attention_has_own)]],
    device const T* v [[buffer(2), function_constant(attention_has_own)]],
    device const T* prefix_k [[buffer(3), function_constant(attention_has_prefix)]],
    device const T* prefix_v [[buffer(4), function_constant(attention_has_prefix)]],
    device const uchar* mask [[buffer(5), function_constant(attention_has_mask)]],
    device const int* starts [[buffer(6), function_constant(attention_has_starts)]],
    device const int* lengths [[buffer(7), function_constant(attention_has_lengths)]],
    device const T* dout [[buffer(8), function_constant(attention_has_pairs)]],
    device const float* ends [[buffer(9), function_constant(attention_has_pairs)]],
    device const float* delta [[buffer(10), function_constant(attention_has_pairs)]],
    device T* dq [[buffer(11)]],
    constant AttentionGradArgs& grad_args [[buffer(12)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]
) {
  using Tile = CooperativeTile<T, HEAD, STRIPS, PARTS>;
  threadgroup float4 memory[Tile::size];
  DotProduct op;
  auto left = op.template get_left_input_cooperative_tensor<T, T, float>();
  auto right = op.template get_right_input_cooperative_tensor<T, T, float>();
  auto dots = op.template get_destination_cooperative_tensor<
      remove_addrspace_t<decltype(left)>,
      remove_addrspace_t<decltype(right)>,
      float>();
  auto dweights = dots;
  const CooperativeTeam<Tile> team = cooperative_team<Tile>(memory, simdgroup, lane, dots);
  constant AttentionArgs& args = grad_args.forward;

  const uint head = group.y;
  const uint row = group.z;
  const uint kv_head = head / uint(args.heads / args.kv_heads);
  const int column = int(group.x) % args.column_parts * HEAD;
  const int tiles = (args.Tq + Tile::rows - 1) / Tile::rows;
  const int first_of_tile = (tiles - 1 - int(group.x) / args.column_parts) * Tile::rows;
  const int first_query = first_of_tile + team.first_row();
  float sums[Tile::sums][cooperative_slots];
  clear_sums<Tile>(sums);

  if (attention_has_pairs) {
    const AttentionKeys keys = attention_keys(args, starts, lengths, row);
    const AttentionScale scale = attention_scale(args);
    const AttentionMaskRows mask_rows = attention_mask_rows(mask, args, row, head);
    const AttentionRows<T> queries = query_rows(q, args.q, row, head, args.Tq, args.D);
    const AttentionRows<T> douts = query_rows(dout, grad_args.dout, row, head, args.Tq, args.Dv);
    const AttentionRows<T> k_rows = key_rows(k, prefix_k, args.k, args.prefix_k, row, kv_head, keys, args.D);
    const AttentionRows<T> v_rows = key_rows(v, prefix_v, args.v, args.prefix_v, row, kv_head, keys, args.Dv);
    const SavedRows saved = saved_rows(ends, delta, grad_args, row, head);
    const AttentionRange strip{first_query, min(first_query + Tile::strip, args.Tq)};
    const AttentionRange seen_by_strip = keys.seen_by(strip);
    const AttentionRange seen = keys.seen_by({first_of_tile, min(first_of_tile + Tile::rows, args.Tq)});

    int key = keys.skip_hidden(seen.first / Tile::block * Tile::block, Tile::block);
    while (key < seen.end) {
      if (PARTS > 1 || (key < seen_by_strip.end && key + Tile::block > seen_by_strip.first)) {
        multiply_rows<Tile>(dots, queries, first_query, k_rows, key, team);
        multiply_rows<Tile>(dweights, douts, first_query, v_rows, key, team);
        const bool seen_all = keys.sees_all(strip, {key, key + Tile::block});
        float by_dot[cooperative_slots];
#pragma clang loop unroll(full)
        for (ushort i = 0; i < cooperative_slots; ++i) {
          by_dot[i] = 0.0f;
          if (dots.is_valid_element(i)) {
            const auto at = dots.get_multidimensional_index(i);
            const int query = first_query + at[1];
            by_dot[i] = pair_gradient<T>(
                            dots[i], dweights[i], query, key + at[0], seen_all, saved.at(query), keys, mask_rows, scale
            )
                            .by_dot;
          }
        }
        add_products<Tile>(sums, by_dot, dots, k_rows, key, column, team);
      }
      threadgroup_barrier(mem_flags::mem_none);
      key = keys.skip_hidden(key + Tile::block, Tile::block);
    }
  }
  float factors[cooperative_slots];
  fill_slots(factors, args.scale);
  device T* dq_rows = dq + (int64_t(row) * args.heads + head) * args.Tq * args.D;
  store_sums<Tile>(dq_rows, first_query, args.Tq, column, args.D, sums, factors, team);
}

template <typename T, int HEAD, int STRIPS, int PARTS>
[[kernel, max_total_threads_per_threadgroup(STRIPS * PARTS * 32)]] void attention_grad_keys(
    device const T* q [[buffer(0), function_constant(attention_has_pairs)]],
    device const T* k [[buffer(1), function_constant(attention_has_own)]],
    device const T* v [[buffer(2), function_constant(attention_has_own)]],
    device const T* prefix_k [[buffer(3), function_constant(attention_has_prefix)]],
    device const T* prefix_v [[buffer(4), function_constant(attention_has_prefix)]],
    device const uchar* mask [[buffer(5), function_constant(attention_has_mask)]],
    device const int* starts [[buffer(6), function_constant(attention_has_starts)]],
    device const int* lengths [[buffer(7), function_constant(attention_has_lengths)]],
    device const T* dout [[buffer(8), function_constant(attention_has_pairs)]],
    device const float* ends [[buffer(9), function_constant(attention_has_pairs)]],
    device const float* delta [[buffer(10), function_constant(attention_has_pairs)]],
    device T* dk [[buffer(11), function_constant(attention_has_depth)]],
    device T* dv [[buffer(12), function_constant(attention_has_values)]],
    constant AttentionGradArgs& grad_args [[buffer(13)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]
) {
  using Tile = CooperativeTile<T, HEAD, STRIPS, PARTS>;
  threadgroup float4 memory[Tile::size];
  DotProduct op;
  auto left = op.template get_left_input_cooperative_tensor<T, T, float>();
  auto right = op.template get_right_input_cooperative_tensor<T, T, float>();
  auto dots = op.template get_destination_cooperative_tensor<
      remove_addrspace_t<decltype(left)>,
      remove_addrspace_t<decltype(right)>,
      float>();
  auto dweights = dots;
  const CooperativeTeam<Tile> team = cooperative_team<Tile>(memory, simdgroup, lane, dots);
  constant AttentionArgs& args = grad_args.forward;

  const uint kv_head = group.y;
  const int heads = args.heads / args.kv_heads; // that share the keys
  const int column = int(group.x) % args.column_parts * HEAD;
  const int first_of_tile = int(group.x) / args.column_parts * Tile::rows; // of dk and dv
  const int first_row = first_of_tile + team.first_row();
  const int first_key = first_row + (attention_of_prefix ? 0 : args.P);
  float dk_sums[Tile::sums][cooperative_slots];
  float dv_sums[Tile::sums][cooperative_slots];
  clear_sums<Tile>(dk_sums);
  clear_sums<Tile>(dv_sums);

  if (attention_has_pairs) {
    const uint first_batch = attention_of_prefix ? 0u : group.z;
    const uint end_batch = attention_of_prefix ? uint(args.B) : group.z + 1u;
    for (uint row = first_batch; row < end_batch; ++row) {
      AttentionKeys keys = attention_keys(args, starts, lengths, row);
      const AttentionScale scale = attention_scale(args);
      if (attention_of_prefix) {
        keys.first_own = args.P; // a tile ends where the prefix does
        keys.end_own = args.P;
      }
      const AttentionRange strip{first_key, first_key + Tile::strip};
      const int first_of_keys = first_key - team.first_row();
      const AttentionRange seeing = keys.seeing({first_of_keys, first_of_keys + Tile::rows});
      const AttentionRange seeing_strip = keys.seeing(strip);
      const AttentionRows<T> k_rows = key_rows(k, prefix_k, args.k, args.prefix_k, row, kv_head, keys, args.D);
      const AttentionRows<T> v_rows = key_rows(v, prefix_v, args.v, args.prefix_v, row, kv_head, keys, args.Dv);
      for (int h = 0; h < heads; ++h) {
        const uint head = kv_head * uint(heads) + uint(h);
        const AttentionMaskRows mask_rows = attention_mask_rows(mask, args, row, head);
        const AttentionRows<T> queries = query_rows(q, args.q, row, head, args.Tq, args.D);
        const AttentionRows<T> douts = query_rows(dout, grad_args.dout, row, head, args.Tq, args.Dv);
        const SavedRows saved = saved_rows(ends, delta, grad_args, row, head);
        for (int query = seeing.first / Tile::block * Tile::block; query < seeing.end; query += Tile::block) {
          if (PARTS > 1 || (query < seeing_strip.end && query + Tile::block > seeing_strip.first)) {
            multiply_rows<Tile>(dots, k_rows, first_key, queries, query, team);
            multiply_rows<Tile>(dweights, v_rows, first_key, douts, query, team);
            const bool seen_all = keys.sees_all({query, min(query + Tile::block, args.Tq)}, strip);
            float weights[cooperative_slots];
            float by_dot[cooperative_slots];
#pragma clang loop unroll(full)
            for (ushort i = 0; i < cooperative_slots; ++i) {
              weights[i] = 0.0f;
              by_dot[i] = 0.0f;
              if (dots.is_valid_element(i)) {
                const auto at = dots.get_multidimensional_index(i);
                const int other = query + at[0];
                const AttentionPairGradient pair = pair_gradient<T>(
                    dots[i], dweights[i], other, first_key + at[1], seen_all, saved.at(other), keys, mask_rows, scale
                );
                weights[i] = pair.weight;
                by_dot[i] = pair.by_dot;
              }
            }
            add_products<Tile>(dv_sums, weights, dots, douts, query, column, team);
            add_products<Tile>(dk_sums, by_dot, dots, queries, query, column, team);
          }
          threadgroup_barrier(mem_flags::mem_none);
        }
      }
    }
  }

  const int rows = attention_of_prefix ? args.P : args.Tk;
  const int64_t first = ((attention_of_prefix ? 0 : int64_t(group.z)) * args.kv_heads + kv_head) * rows;
  float factors[cooperative_slots];
  if (attention_has_depth) {
    fill_slots(factors, args.scale);
    store_sums<Tile>(dk + first * args.D, first_row, rows, column, args.D, dk_sums, factors, team);
  }
  if (attention_has_values) {
    fill_slots(factors, 1.0f);
    store_sums<Tile>(dv + first * args.Dv, first_row, rows, column, args.Dv, dv_sums, factors, team);
  }
}

#define instantiate_queries(dtype, T, HEAD, STRIPS, PARTS)                                                 \
  instantiate_kernel(                                                                                      \
      "attention_grad_tensorops_queries_" #dtype "_" #HEAD, attention_grad_queries, T, HEAD, STRIPS, PARTS \
  )
#define instantiate_keys(dtype, T, HEAD, STRIPS, PARTS) \
  instantiate_kernel("attention_grad_tensorops_keys_" #dtype "_" #HEAD, attention_grad_keys, T, HEAD, STRIPS, PARTS)
#define instantiate_dtype(dtype, T)                                                     \
  instantiate_queries(dtype, T, 64, 4, 1) instantiate_queries(dtype, T, 128, 4, 1)      \
      instantiate_queries(dtype, T, 256, 4, 2) instantiate_queries(dtype, T, 512, 2, 4) \
          instantiate_keys(dtype, T, 64, 4, 1) instantiate_keys(dtype, T, 128, 4, 2)    \
              instantiate_keys(dtype, T, 256, 2, 4) instantiate_keys(dtype, T, 512, 1, 8)

// clang-format off
instantiate_dtype(float32, float)
instantiate_dtype(float16, half)
instantiate_dtype(bfloat16, bfloat)
