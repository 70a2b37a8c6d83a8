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
//     m and l are kept for the gradients
//
// For few queries, by vectors: the heads that share keys, and their queries, are the rows of one threadgroup, four at a
// time, so that keys are read once for them.
//
//   for each split of the keys, one threadgroup of 8 simdgroups; each simdgroup, or half of one, has every n-th key:
//     m, l, sums as above, key by key
//   m, l and sums of the simdgroups are added in order; with several splits, those of the splits by a second kernel
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
constant bool attention_saves_ends [[function_constant(10)]];

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
    device float* ends [[buffer(10), function_constant(attention_saves_ends)]],
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
    const AttentionScale scale = attention_scale(args);
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
        scores[j] = score_of_pair<T>(scores[j], query, other, seen_all, keys, mask_rows, scale);
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

  const float sink = attention_has_sinks ? sinks[head * args.sinks_stride] : 0.0f;
  const AttentionEnd end = attention_end(m, row_sum(l), attention_has_sinks, sink);
  const int64_t first_row = (int64_t(row) * args.heads + head) * args.Tq;
  store_sums(out + first_row * args.Dv, first_query, args.Tq, column, args.Dv, sums, end.factor, team);
  if (attention_saves_ends && column == 0 && team.part == 0 && lane % 4 == 0 && query < args.Tq) {
    store_end(ends, first_row + query, end);
  }
}

constant bool attention_splits [[function_constant(11)]];   // the keys: sums go to attention_combine
constant bool attention_is_whole [[function_constant(12)]]; // not so

constant constexpr int vector_simdgroups = 8;

// The sum over each LANES neighbours.
template <int LANES>
inline float sum_of_lanes(float x) {
  if (LANES == 32) {
    return simd_sum(x);
  }
#pragma clang loop unroll(full)
  for (ushort step = 1; step < LANES; step *= 2) {
    x += simd_shuffle_xor(x, step);
  }
  return x;
}

// LANES lanes share a key; each has QUADS runs of four columns.
template <typename T, int LANES, int QUADS, int ROWS>
[[kernel, max_total_threads_per_threadgroup(256)]] void attention_few_queries(
    device const T* q [[buffer(0), function_constant(attention_has_pairs)]],
    device const T* k [[buffer(1), function_constant(attention_has_own)]],
    device const T* v [[buffer(2), function_constant(attention_has_own)]],
    device const T* prefix_k [[buffer(3), function_constant(attention_has_prefix)]],
    device const T* prefix_v [[buffer(4), function_constant(attention_has_prefix)]],
    device const uchar* mask [[buffer(5), function_constant(attention_has_mask)]],
    device const int* starts [[buffer(6), function_constant(attention_has_starts)]],
    device const int* lengths [[buffer(7), function_constant(attention_has_lengths)]],
    device const float* sinks [[buffer(8), function_constant(attention_has_sinks)]],
    device T* out [[buffer(9), function_constant(attention_is_whole)]],
    device float* ends [[buffer(10), function_constant(attention_saves_ends)]],
    constant AttentionArgs& args [[buffer(11)]],
    device float* split_sums [[buffer(12), function_constant(attention_splits)]],
    device float2* split_ends [[buffer(13), function_constant(attention_splits)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]
) {
  constexpr int teams = vector_simdgroups * 32 / LANES;
  constexpr int columns = LANES * QUADS * 4;
  threadgroup float4 shared_sums[teams * columns / 4];
  threadgroup float2 shared_ends[teams];

  const uint kv_head = group.y;
  const uint batch = group.z;
  const int heads = args.heads / args.kv_heads; // that share the keys
  const int split = int(group.x) % args.splits;
  const int first_row = int(group.x) / args.splits * ROWS;
  const int rows = heads * args.Tq;
  const int team = int(thread_index) / LANES;
  const int part = int(lane) % LANES * 4; // first column of a thread

  float4 sums[ROWS][QUADS];
  float m[ROWS];
  float l[ROWS];
#pragma clang loop unroll(full)
  for (int r = 0; r < ROWS; ++r) {
    m[r] = hidden_score;
    l[r] = 0.0f;
#pragma clang loop unroll(full)
    for (int i = 0; i < QUADS; ++i) {
      sums[r][i] = float4(0.0f);
    }
  }

  if (attention_has_pairs) {
    const AttentionKeys keys = attention_keys(args, starts, lengths, batch);
    const AttentionScale scale = attention_scale(args);
    const AttentionRows<T> k_rows = key_rows(k, prefix_k, args.k, args.prefix_k, batch, kv_head, keys, args.D);
    const AttentionRows<T> v_rows = key_rows(v, prefix_v, args.v, args.prefix_v, batch, kv_head, keys, args.Dv);
    float4 queries[ROWS][QUADS];
    int numbers[ROWS]; // of the queries
    AttentionMaskRows mask_rows[ROWS];
#pragma clang loop unroll(full)
    for (int r = 0; r < ROWS; ++r) {
      const int row = min(first_row + r, rows - 1);
      const uint head = kv_head * uint(heads) + uint(row / args.Tq);
      const AttentionRows<T> source = query_rows(q, args.q, batch, head, args.Tq, args.D);
      numbers[r] = row % args.Tq;
      mask_rows[r] = attention_mask_rows(mask, args, batch, head);
#pragma clang loop unroll(full)
      for (int i = 0; i < QUADS; ++i) {
        queries[r][i] = source.load_four(numbers[r], part + i * LANES * 4);
      }
    }

    const AttentionRange seen = keys.seen_by({0, args.Tq});
    const int first_key = seen.first / 32 * 32 + split * args.split_keys;
    const int end_key = min(first_key + args.split_keys, seen.end);
    // Lanes of a simdgroup meet in shuffles: its teams go on together.
    for (int key = first_key + int(simdgroup) * (32 / LANES); key < end_key; key += teams) {
      const int own_key = key + int(lane) / LANES;
      float4 k_quads[QUADS];
      float4 v_quads[QUADS];
      const bool loads = own_key < end_key && own_key >= seen.first && keys.exists(own_key);
#pragma clang loop unroll(full)
      for (int i = 0; i < QUADS; ++i) {
        k_quads[i] = loads ? k_rows.load_four(own_key, part + i * LANES * 4) : float4(0.0f);
        v_quads[i] = loads ? v_rows.load_four(own_key, part + i * LANES * 4) : float4(0.0f);
      }
#pragma clang loop unroll(full)
      for (int r = 0; r < ROWS; ++r) {
        float dot_product = 0.0f;
#pragma clang loop unroll(full)
        for (int i = 0; i < QUADS; ++i) {
          dot_product += dot(queries[r][i], k_quads[i]);
        }
        dot_product = sum_of_lanes<LANES>(dot_product);
        const float score =
            loads ? score_of_pair<T>(dot_product, numbers[r], own_key, false, keys, mask_rows[r], scale) : hidden_score;
        if (score != hidden_score) {
          const float best = max(m[r], bound_of_score(score));
          const float factor = fast::exp2(max(m[r] - best, -1000.0f));
          const float weight = fast::exp2(score - best);
          m[r] = best;
          l[r] = l[r] * factor + weight;
#pragma clang loop unroll(full)
          for (int i = 0; i < QUADS; ++i) {
            sums[r][i] *= factor;
            if (weight != 0.0f) {
              sums[r][i] += weight * v_quads[i];
            }
          }
        }
      }
    }
  }

#pragma clang loop unroll(full)
  for (int r = 0; r < ROWS; ++r) {
    if (int(lane) % LANES == 0) {
      shared_ends[team] = float2(m[r], l[r]);
    }
#pragma clang loop unroll(full)
    for (int i = 0; i < QUADS; ++i) {
      shared_sums[(team * columns + part) / 4 + i * LANES] = sums[r][i];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (first_row + r < rows) {
      // Each lane has a team's end.
      float2 own_end(hidden_score, 0.0f);
      if (lane < teams) {
        own_end = shared_ends[lane];
      }
      const float best = simd_max(own_end[0]);
      const float own_factor = fast::exp2(max(own_end[0] - best, -1000.0f));
      const float total = simd_sum(own_end[1] * own_factor);
      float factors[teams];
#pragma clang loop unroll(full)
      for (ushort t = 0; t < teams; ++t) {
        factors[t] = simd_shuffle(own_factor, t);
      }
      const uint head = kv_head * uint(heads) + uint((first_row + r) / args.Tq);
      const int64_t row = (int64_t(batch) * args.heads + head) * args.Tq + (first_row + r) % args.Tq;
      float factor = 1.0f;
      if (attention_is_whole) {
        const float sink = attention_has_sinks ? sinks[head * args.sinks_stride] : 0.0f;
        const AttentionEnd end = attention_end(best, total, attention_has_sinks, sink);
        factor = end.factor;
        if (attention_saves_ends && thread_index == 0) {
          store_end(ends, row, end);
        }
      } else if (thread_index == 0) {
        split_ends[row * args.splits + split] = float2(best, total);
      }
      threadgroup const float* team_sums = reinterpret_cast<threadgroup const float*>(shared_sums);
      for (int column = int(thread_index); column < args.Dv; column += vector_simdgroups * 32) {
        float sum = 0.0f;
#pragma clang loop unroll(full)
        for (int t = 0; t < teams; ++t) {
          sum += team_sums[t * columns + column] * factors[t];
        }
        if (attention_is_whole) {
          out[row * args.Dv + column] = T(sum * factor);
        } else {
          split_sums[(row * args.splits + split) * args.Dv + column] = sum;
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}

// One threadgroup a row: adds its splits in order.
template <typename T>
[[kernel, max_total_threads_per_threadgroup(128)]] void attention_combine(
    device const float* split_sums [[buffer(0)]],
    device const float2* split_ends [[buffer(1)]],
    device const float* sinks [[buffer(2), function_constant(attention_has_sinks)]],
    device T* out [[buffer(3)]],
    device float* ends [[buffer(4), function_constant(attention_saves_ends)]],
    constant AttentionArgs& args [[buffer(5)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]]
) {
  const uint head = group.y;
  const int64_t row = (int64_t(group.z) * args.heads + head) * args.Tq + group.x;
  device const float2* row_ends = split_ends + row * args.splits;
  float best = hidden_score;
  for (int s = 0; s < args.splits; ++s) {
    best = max(best, row_ends[s][0]);
  }
  float total = 0.0f;
  for (int s = 0; s < args.splits; ++s) {
    total += row_ends[s][1] * fast::exp2(max(row_ends[s][0] - best, -1000.0f));
  }
  const float sink = attention_has_sinks ? sinks[head * args.sinks_stride] : 0.0f;
  const AttentionEnd end = attention_end(best, total, attention_has_sinks, sink);
  for (int column = int(thread_index); column < args.Dv; column += 128) {
    float sum = 0.0f;
    for (int s = 0; s < args.splits; ++s) {
      const float factor = fast::exp2(max(row_ends[s][0] - best, -1000.0f));
      sum += split_sums[(row * args.splits + s) * args.Dv + column] * factor;
    }
    out[row * args.Dv + column] = T(sum * end.factor);
  }
  if (attention_saves_ends && thread_index == 0) {
    store_end(ends, row, end);
  }
}

#define instantiate_vector(dtype, T, HEAD, LANES, QUADS, ROWS) \
  instantiate_kernel("attention_vector_" #dtype "_" #HEAD "_" #ROWS, attention_few_queries, T, LANES, QUADS, ROWS)
#define instantiate_tiles(dtype, T, HEAD, PARTS) \
  instantiate_kernel("attention_tiles_" #dtype "_" #HEAD, attention_tiles, T, HEAD, 4, PARTS)
#define instantiate_dtype(dtype, T)                                                                               \
  instantiate_tiles(dtype, T, 64, 1) instantiate_tiles(dtype, T, 72, 1) instantiate_tiles(dtype, T, 80, 1)        \
      instantiate_tiles(dtype, T, 96, 1) instantiate_tiles(dtype, T, 128, 1) instantiate_tiles(dtype, T, 192, 1)  \
          instantiate_tiles(dtype, T, 256, 1) instantiate_tiles(dtype, T, 512, 2)                                 \
              instantiate_vector(dtype, T, 64, 16, 1, 1) instantiate_vector(dtype, T, 64, 16, 1, 4)               \
                  instantiate_vector(dtype, T, 128, 32, 1, 1) instantiate_vector(dtype, T, 128, 32, 1, 4)         \
                      instantiate_vector(dtype, T, 256, 32, 2, 1) instantiate_vector(dtype, T, 256, 32, 2, 4)     \
                          instantiate_vector(dtype, T, 512, 32, 4, 1) instantiate_vector(dtype, T, 512, 32, 4, 2) \
                              instantiate_kernel("attention_combine_" #dtype, attention_combine, T)

// clang-format off
instantiate_dtype(float32, float)
instantiate_dtype(float16, half)
instantiate_dtype(bfloat16, bfloat)
