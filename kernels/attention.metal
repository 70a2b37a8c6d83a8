// out = softmax(softcap(scale q k^T) + mask) v, on simdgroup_matrix: every Apple silicon GPU.
//
//   for each tile of queries of a head, one threadgroup:
//     sums = 0, m = lowest, l = 0                  for each query, float32
//     for each block of 32 keys that holds one which a query of the tile may see:
//       scores = q k^T                             base 2: scale log2(e) is folded in
//       hide what mask, window, starts and lengths hide
//       best = max(m, scores)
//       weights = exp2(scores - best)              0 for a hidden key
//       l, sums *= exp2(m - best); m = best
//       l += sum of weights; sums += weights v
//     out = sums / l
//     lse = (m + log2(l)) ln(2)
//
// Blocks are counted over prefix and own keys together, so that a prefix gives the bits of its copy, and they depend on
// one row of the batch alone. common/attention_tiles.h says how a tile is divided among threads.
//
// Provenance: the online softmax of Milakov and Gimelshein (arXiv 1805.02867) in blocks as in FlashAttention (Dao et
// al., arXiv 2205.14135; backward and one pass per owner of a result as in arXiv 2307.08691).

// clang-format off: the types first that simdgroup_matrix builds on
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
// clang-format on

#include "kernels/common/attention_tiles.h"
#include "kernels/common/instantiate.h"

using namespace metal;

constant bool attention_has_sinks [[function_constant(9)]];
constant bool attention_saves_lse [[function_constant(10)]];

// Greatest of the four lanes of a row, and their sum.
inline float row_max(float x) {
  const float y = simd_shuffle_xor(x, ushort(1));
  x = y > x ? y : x;
  const float z = simd_shuffle_xor(x, ushort(2));
  return z > x ? z : x;
}

inline float row_sum(float x) {
  x += simd_shuffle_xor(x, ushort(1));
  return x + simd_shuffle_xor(x, ushort(2));
}

template <typename T, int HEAD, int STRIPS, int PARTS>
[[kernel, max_total_threads_per_threadgroup(STRIPS * PARTS * 32)]] void attention_tiles(
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
    device float* lse [[buffer(10), function_constant(attention_saves_lse)]],
    constant AttentionArgs& args [[buffer(11)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]
) {
  using Tile = AttentionTile<T, HEAD, STRIPS, PARTS>;
  threadgroup float4 memory[Tile::size];
  const AttentionTeam<Tile> team = attention_team<Tile>(memory, thread_index, simdgroup, lane);

  const uint head = group.y;
  const uint row = group.z;
  const uint kv_head = head / uint(args.heads / args.kv_heads);
  const int column = int(group.x) % args.column_parts * HEAD;
  const int tiles = (args.Tq + Tile::rows - 1) / Tile::rows;
  const int first_query = (tiles - 1 - int(group.x) / args.column_parts) * Tile::rows; // causal: the longest first
  const int query = first_query + team.own_row();

  AttentionSums<Tile> sums;
  clear_sums(sums);
  float m = hidden_score;
  float l = 0.0f;

  if (attention_has_pairs) {
    const AttentionKeys keys = attention_keys(args, starts, lengths, row);
    const AttentionMaskRows mask_rows = attention_mask_rows(mask, args, row, head);
    const AttentionRows<T> queries = query_rows(q, args.q, row, head, args.Tq, args.D);
    const AttentionRows<T> k_rows = key_rows(k, prefix_k, args.k, args.prefix_k, row, kv_head, keys, args.D);
    const AttentionRows<T> v_rows = key_rows(v, prefix_v, args.v, args.prefix_v, row, kv_head, keys, args.Dv);
    const AttentionRange tile{first_query, min(first_query + Tile::rows, args.Tq)};
    const AttentionRange seen = keys.seen_by(tile);

    int key = keys.skip_hidden(seen.first / Tile::block * Tile::block, Tile::block);
    if (Tile::can_stay && key < seen.end) {
      stage_rows<Tile, Tile::rows, HEAD>(team.rows, Tile::row_pitch, queries, first_query, 0, team);
    }
    while (key < seen.end) {
      simdgroup_float8x8 products[Tile::score_fragments];
      multiply_rows<Tile, Tile::can_stay>(products, queries, first_query, k_rows, key, team);
      float scores[8];
      read_products<Tile>(scores, products, team);

      const bool seen_all = keys.sees_all(tile, {key, key + Tile::block});
      float best = m;
      for (int j = 0; j < 8; ++j) {
        const int other = key + team.own_column() + j;
        scores[j] = score_of_pair<T>(scores[j], query, other, seen_all, keys, mask_rows, args);
        best = max(best, bound_of_score(scores[j]));
      }
      best = row_max(best);
      const float factor = fast::exp2(max(m - best, -1000.0f));
      m = best;
      l *= factor;
      for (int j = 0; j < 8; ++j) {
        scores[j] = scores[j] == hidden_score ? 0.0f : fast::exp2(scores[j] - best);
        l += scores[j];
      }
      write_weights<Tile>(scores, team);
      if (!simd_all(factor == 1.0f)) {
        scale_sums(sums, factor, team);
      }
      add_products(sums, v_rows, key, column, team);
      key = keys.skip_hidden(key + Tile::block, Tile::block);
    }
  }

  const bool sees_none = m == hidden_score;
  l = row_sum(l);
  float factor = 1.0f;
  if (attention_has_sinks && !sees_none) {
    const float sink = sinks[head * args.sinks_stride] * log2_e;
    const float best = sink > m ? sink : m;
    factor = fast::exp2(max(m - best, -1000.0f));
    l = l * factor + fast::exp2(max(sink - best, -1000.0f));
    m = best;
  }
  factor = sees_none ? 0.0f : factor / l;
  const int64_t first_row = (int64_t(row) * args.heads + head) * args.Tq;
  store_sums(out + first_row * args.Dv, first_query, args.Tq, column, args.Dv, sums, factor, team);
  if (attention_saves_lse && column == 0 && team.part == 0 && lane % 4 == 0 && query < args.Tq) {
    lse[first_row + query] = sees_none ? largest_float : (m + precise::log2(l)) * ln_2;
  }
}

#define instantiate_tiles(dtype, T, HEAD, PARTS) \
  instantiate_kernel("attention_tiles_" #dtype "_" #HEAD, attention_tiles, T, HEAD, 4, PARTS)
#define instantiate_dtype(dtype, T)                                                                              \
  instantiate_tiles(dtype, T, 64, 1) instantiate_tiles(dtype, T, 72, 1) instantiate_tiles(dtype, T, 80, 1)       \
      instantiate_tiles(dtype, T, 96, 1) instantiate_tiles(dtype, T, 128, 1) instantiate_tiles(dtype, T, 192, 1) \
          instantiate_tiles(dtype, T, 256, 1) instantiate_tiles(dtype, T, 512, 2)

// clang-format off
instantiate_dtype(float32, float)
instantiate_dtype(float16, half)
instantiate_dtype(bfloat16, bfloat)
