// out = softmax(softcap(scale q k^T) + mask) v on the matrix units through MPP's matmul2d: what attention.metal
// computes, by the same blocks of keys. float32 operands are truncated to tf32: exact float32 does not run on the
// matrix units.
//
//   for each strip of 16 queries of a head, one simdgroup, or several that share its columns:
//     for each block of 32 keys:
//       scores = q k^T                    a destination cooperative tensor
//       its greatest by rows, weights in its place, their sums by rows
//       sums += weights v                 weights as left inputs, v as right ones
//
// Rows of k and v that do not exist are never read. A barrier that orders no memory keeps the simdgroups of a tile
// together, so that they share what the cache holds.
//
// Provenance: 64 queries by 32 keys, one simdgroup for 16 queries, and columns divided from 256 on are MLX's choices
// (steel_attention_nax); reductions of cooperative tensors as in Apple's session on attention (WWDC26).

// clang-format off: the types first that MPP builds on
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
// clang-format on

#include "kernels/common/attention_cooperative.h"
#include "kernels/common/instantiate.h"

using namespace metal;

using mpp::tensor_ops::reduce_rows;
using mpp::tensor_ops::reduction_operation;

constant bool attention_has_sinks [[function_constant(9)]];
constant bool attention_saves_ends [[function_constant(10)]];

template <typename Rows>
inline void fill_rows(thread Rows& rows, float value) {
#pragma clang loop unroll(full)
  for (ushort i = 0; i < rows.get_capacity(); ++i) {
    rows[i] = value;
  }
}

template <typename T, int HEAD, int STRIPS, int PARTS>
[[kernel, max_total_threads_per_threadgroup(STRIPS * PARTS * 32)]] void attention_tensorops(
    device const T* q [[buffer(0), function_constant(attention_has_pairs)]],
    device const T* k [[buffer(1), function_constant(attention_has_own)]],
    device const T* v [[buffer(2), function_constant(attention_has_own)]],
    device const T* prefix_k [[buffer(3), function_constant(attention_has_prefix)]],
    device const T* prefix_v [[buffer(4), function_constant(attention_has_prefix)]],
    device const uchar* mask [[buffer(5), function_constant(attention_has_mask)]],
    device const int* starts [[buffer(6), function_constant(attention_has_starts)]],
    device const int* lengths [[buffer(7), function_constant(attention_has_lengths)]],
    device const float* sinks [[buffer(8), function_constant(attention_has_sinks)]],
    device T* out [[buffer(9)]],
    device float* ends [[buffer(10), function_constant(attention_saves_ends)]],
    constant AttentionArgs& args [[buffer(11)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]
) {
  using Tile = CooperativeTile<T, HEAD, STRIPS, PARTS>;
  threadgroup float4 memory[Tile::size];
  DotProduct op;
  auto left = op.template get_left_input_cooperative_tensor<T, T, float>();
  auto right = op.template get_right_input_cooperative_tensor<T, T, float>();
  auto scores = op.template get_destination_cooperative_tensor<
      remove_addrspace_t<decltype(left)>,
      remove_addrspace_t<decltype(right)>,
      float>();
  auto m = op.template get_row_reduction_destination_cooperative_tensor<
      remove_addrspace_t<decltype(left)>,
      remove_addrspace_t<decltype(right)>,
      float>();
  auto l = m;
  auto factor = m;
  auto reduced = m;
  fill_rows(m, hidden_score);
  fill_rows(l, 0.0f);
  const CooperativeTeam<Tile> team = cooperative_team<Tile>(memory, simdgroup, lane, scores);

  const uint head = group.y;
  const uint row = group.z;
  const uint kv_head = head / uint(args.heads / args.kv_heads);
  const int column = int(group.x) % args.column_parts * HEAD;
  const int tiles = (args.Tq + Tile::rows - 1) / Tile::rows;
  const int first_of_tile = (tiles - 1 - int(group.x) / args.column_parts) * Tile::rows; // causal: the longest first
  const int first_query = first_of_tile + team.first_row();
  float sums[Tile::sums][cooperative_slots];
  clear_sums<Tile>(sums);

  if (attention_has_pairs) {
    const AttentionKeys keys = attention_keys(args, starts, lengths, row);
    const AttentionScale scale = attention_scale(args);
    const AttentionMaskRows mask_rows = attention_mask_rows(mask, args, row, head);
    const AttentionRows<T> queries = query_rows(q, args.q, row, head, args.Tq, args.D);
    const AttentionRows<T> k_rows = key_rows(k, prefix_k, args.k, args.prefix_k, row, kv_head, keys, args.D);
    const AttentionRows<T> v_rows = key_rows(v, prefix_v, args.v, args.prefix_v, row, kv_head, keys, args.Dv);
    const AttentionRange strip{first_query, min(first_query + Tile::strip, args.Tq)};
    const AttentionRange seen_by_strip = keys.seen_by(strip);
    const AttentionRange seen = keys.seen_by({first_of_tile, min(first_of_tile + Tile::rows, args.Tq)});

    int key = keys.skip_hidden(seen.first / Tile::block * Tile::block, Tile::block);
    while (key < seen.end) {
      // Parts of a strip meet at barriers of the threadgroup: then no strip may stay out.
      if (PARTS > 1 || (key < seen_by_strip.end && key + Tile::block > seen_by_strip.first)) {
        multiply_rows<Tile>(scores, queries, first_query, k_rows, key, team);
        const bool seen_all = keys.sees_all(strip, {key, key + Tile::block});
        float weights[cooperative_slots];
#pragma clang loop unroll(full)
        for (ushort i = 0; i < cooperative_slots; ++i) {
          weights[i] = hidden_score;
          if (scores.is_valid_element(i)) {
            const auto at = scores.get_multidimensional_index(i);
            weights[i] =
                score_of_pair<T>(scores[i], first_query + at[1], key + at[0], seen_all, keys, mask_rows, scale);
          }
          scores[i] = bound_of_score(weights[i]);
        }
        reduce_rows(scores, reduced, reduction_operation::max, hidden_score);
#pragma clang loop unroll(full)
        for (ushort i = 0; i < m.get_capacity(); ++i) {
          const float best = max(m[i], reduced[i]);
          factor[i] = fast::exp2(max(m[i] - best, -1000.0f));
          m[i] = best;
        }
        float factors[cooperative_slots];
        bool same = true;
        ushort slot = 0;
#pragma clang loop unroll(full)
        for (auto it = scores.begin(); it != scores.end(); ++it, ++slot) {
          const float best = *m.map_iterator(it);
          factors[slot] = *factor.map_iterator(it);
          same = same && factors[slot] == 1.0f;
          weights[slot] = weights[slot] == hidden_score ? 0.0f : fast::exp2(weights[slot] - best);
          *it = weights[slot];
        }
        reduce_rows(scores, reduced, reduction_operation::sum, 0.0f);
#pragma clang loop unroll(full)
        for (ushort i = 0; i < l.get_capacity(); ++i) {
          l[i] = l[i] * factor[i] + reduced[i];
        }
        if (!simd_all(same)) {
          move_to_sums<Tile>(factors, scores, team);
#pragma clang loop unroll(full)
          for (int t = 0; t < Tile::sums; ++t) {
#pragma clang loop unroll(full)
            for (ushort i = 0; i < cooperative_slots; ++i) {
              sums[t][i] *= factors[i];
            }
          }
        }
        add_products<Tile>(sums, weights, scores, v_rows, key, column, team);
      }
      threadgroup_barrier(mem_flags::mem_none);
      key = keys.skip_hidden(key + Tile::block, Tile::block);
    }
  }

  const int64_t first_row = (int64_t(row) * args.heads + head) * args.Tq;
  const float sink = attention_has_sinks ? sinks[head * args.sinks_stride] : 0.0f;
  float factors[cooperative_slots];
  ushort slot = 0;
#pragma clang loop unroll(full)
  for (auto it = scores.begin(); it != scores.end(); ++it, ++slot) {
    const AttentionEnd end = attention_end(*m.map_iterator(it), *l.map_iterator(it), attention_has_sinks, sink);
    factors[slot] = end.factor;
    if (attention_saves_ends && column == 0 && team.part == 0 && scores.is_valid_element(slot)) {
      const auto at = scores.get_multidimensional_index(slot);
      const int query = first_query + at[1];
      if (at[0] == 0 && query < args.Tq) {
        store_end(ends, first_row + query, end);
      }
    }
  }
  move_to_sums<Tile>(factors, scores, team);
  store_sums<Tile>(out + first_row * args.Dv, first_query, args.Tq, column, args.Dv, sums, factors, team);
}

#define instantiate_head(dtype, T, HEAD, STRIPS, PARTS) \
  instantiate_kernel("attention_tensorops_" #dtype "_" #HEAD, attention_tensorops, T, HEAD, STRIPS, PARTS)
#define instantiate_dtype(dtype, T)                                                                                \
  instantiate_head(dtype, T, 64, 4, 1) instantiate_head(dtype, T, 128, 4, 1) instantiate_head(dtype, T, 256, 4, 2) \
      instantiate_head(dtype, T, 512, 2, 4)

// clang-format off
instantiate_dtype(float32, float)
instantiate_dtype(float16, half)
instantiate_dtype(bfloat16, bfloat)
