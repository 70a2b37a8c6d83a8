// The gradients of attention, on simdgroup_matrix: every Apple silicon GPU. Scores are computed again from q, k and the
// log-sum-exp that the forward pass saved; each result has one owner, so that nothing is added by atomics.
//
//   delta = dout . out                             of each query
//
//   queries: for each tile of queries, one threadgroup
//     for each block of keys that one of them may see:
//       weights = 2^(scores - m) / l; dscores = weights (dout v^T - delta)
//       dq += dscores k
//
//   keys: for each tile of keys of the row, or of the prefix, one threadgroup
//     for each row of the batch (of the prefix: all), each head that shares the keys, each block of queries that may
//     see one of them:
//       dv += weights^T dout; dk += dscores^T q
//
//   mask: for each tile of an additive mask as it was given, one threadgroup
//     the sum of dscores over the rows, heads, queries and keys that share its elements, in order
//
//   sinks: for each head, one threadgroup: -sum of the sink's weights times delta
//
// Blocks, tiles and their division among threads are those of attention.metal.

// clang-format off: the types first that simdgroup_matrix builds on
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
// clang-format on

#include "kernels/common/attention_gradients.h"
#include "kernels/common/attention_tiles.h"
#include "kernels/common/instantiate.h"

using namespace metal;

constant bool attention_of_prefix [[function_constant(9)]];   // the keys are those of the prefix
constant bool attention_has_values [[function_constant(11)]]; // Dv > 0
constant bool attention_has_depth [[function_constant(10)]];  // D > 0

template <typename T>
[[kernel, max_total_threads_per_threadgroup(256)]] void attention_delta(
    device const T* out [[buffer(0)]],
    device const T* dout [[buffer(1)]],
    device float* delta [[buffer(2)]],
    constant AttentionGradArgs& args [[buffer(3)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]
) {
  const int64_t query = int64_t(group.x) * 8 + simdgroup;
  if (query >= args.forward.Tq) {
    return;
  }
  device const T* x = out + (group.z * args.out.batch + group.y * args.out.head + query * args.out.row);
  device const T* y = dout + (group.z * args.dout.batch + group.y * args.dout.head + query * args.dout.row);
  float sum = 0.0f;
  for (int column = int(lane); column < args.forward.Dv; column += 32) {
    sum += float(x[column * args.out.column]) * float(y[column * args.dout.column]);
  }
  sum = simd_sum(sum);
  if (lane == 0) {
    delta[(int64_t(group.z) * args.forward.heads + group.y) * args.forward.Tq + query] = sum;
  }
}

// Products of a tile of queries and a block of keys, and what becomes of each pair of a lane.
template <typename Tile>
inline void query_pairs(
    thread AttentionPairGradient (&pairs)[8],
    thread const AttentionRows<typename Tile::T>& queries,
    thread const AttentionRows<typename Tile::T>& douts,
    AttentionRange tile,
    thread const AttentionRows<typename Tile::T>& k_rows,
    thread const AttentionRows<typename Tile::T>& v_rows,
    int key,
    thread const SavedRows& saved,
    thread const AttentionKeys& keys,
    thread const AttentionMaskRows& mask,
    thread const AttentionScale& scale,
    thread const AttentionTeam<Tile>& team
) {
  simdgroup_float8x8 products[Tile::score_fragments];
  float dots[8];
  float dweights[8];
  multiply_rows<Tile, false>(products, queries, tile.first, k_rows, key, team);
  read_products<Tile>(dots, products, team);
  multiply_rows<Tile, false>(products, douts, tile.first, v_rows, key, team);
  read_products<Tile>(dweights, products, team);

  const int query = tile.first + team.own_row();
  const AttentionSavedRow row = saved.at(query);
  const bool seen_all = keys.sees_all(tile, {key, key + Tile::block});
  for (int j = 0; j < 8; ++j) {
    const int other = key + team.own_column() + j;
    pairs[j] = pair_gradient<typename Tile::T>(dots[j], dweights[j], query, other, seen_all, row, keys, mask, scale);
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
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]
) {
  using Tile = AttentionTile<T, HEAD, STRIPS, PARTS>;
  threadgroup float4 memory[Tile::size];
  const AttentionTeam<Tile> team = attention_team<Tile>(memory, thread_index, simdgroup, lane);
  constant AttentionArgs& args = grad_args.forward;

  const uint head = group.y;
  const uint row = group.z;
  const uint kv_head = head / uint(args.heads / args.kv_heads);
  const int column = int(group.x) % args.column_parts * HEAD;
  const int tiles = (args.Tq + Tile::rows - 1) / Tile::rows;
  const int first_query = (tiles - 1 - int(group.x) / args.column_parts) * Tile::rows;
  AttentionSums<Tile> sums;
  clear_sums(sums);

  if (attention_has_pairs) {
    const AttentionKeys keys = attention_keys(args, starts, lengths, row);
    const AttentionScale scale = attention_scale(args);
    const AttentionMaskRows mask_rows = attention_mask_rows(mask, args, row, head);
    const AttentionRows<T> queries = query_rows(q, args.q, row, head, args.Tq, args.D);
    const AttentionRows<T> douts = query_rows(dout, grad_args.dout, row, head, args.Tq, args.Dv);
    const AttentionRows<T> k_rows = key_rows(k, prefix_k, args.k, args.prefix_k, row, kv_head, keys, args.D);
    const AttentionRows<T> v_rows = key_rows(v, prefix_v, args.v, args.prefix_v, row, kv_head, keys, args.Dv);
    const SavedRows saved = saved_rows(ends, delta, grad_args, row, head);
    const AttentionRange tile{first_query, min(first_query + Tile::rows, args.Tq)};
    const AttentionRange seen = keys.seen_by(tile);

    int key = keys.skip_hidden(seen.first / Tile::block * Tile::block, Tile::block);
    while (key < seen.end) {
      AttentionPairGradient pairs[8];
      query_pairs<Tile>(pairs, queries, douts, tile, k_rows, v_rows, key, saved, keys, mask_rows, scale, team);
      float by_dot[8];
      for (int j = 0; j < 8; ++j) {
        by_dot[j] = pairs[j].by_dot;
      }
      write_weights<Tile>(by_dot, team);
      add_products(sums, k_rows, key, column, team);
      key = keys.skip_hidden(key + Tile::block, Tile::block);
    }
  }
  device T* dq_rows = dq + (int64_t(row) * args.heads + head) * args.Tq * args.D;
  store_sums(dq_rows, first_query, args.Tq, column, args.D, sums, args.scale, team);
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
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]
) {
  using Tile = AttentionTile<T, HEAD, STRIPS, PARTS>;
  threadgroup float4 memory[Tile::size];
  const AttentionTeam<Tile> team = attention_team<Tile>(memory, thread_index, simdgroup, lane);
  constant AttentionArgs& args = grad_args.forward;

  const uint kv_head = group.y;
  const int heads = args.heads / args.kv_heads; // that share the keys
  const int column = int(group.x) % args.column_parts * HEAD;
  const int first_row = int(group.x) / args.column_parts * Tile::rows; // of dk and dv
  const int first_key = first_row + (attention_of_prefix ? 0 : args.P);
  AttentionSums<Tile> dk_sums;
  AttentionSums<Tile> dv_sums;
  clear_sums(dk_sums);
  clear_sums(dv_sums);

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
      const AttentionRange tile{first_key, first_key + Tile::rows};
      const AttentionRange seeing = keys.seeing(tile);
      const AttentionRows<T> k_rows = key_rows(k, prefix_k, args.k, args.prefix_k, row, kv_head, keys, args.D);
      const AttentionRows<T> v_rows = key_rows(v, prefix_v, args.v, args.prefix_v, row, kv_head, keys, args.Dv);
      const int key = first_key + team.own_row();
      for (int h = 0; h < heads; ++h) {
        const uint head = kv_head * uint(heads) + uint(h);
        const AttentionMaskRows mask_rows = attention_mask_rows(mask, args, row, head);
        const AttentionRows<T> queries = query_rows(q, args.q, row, head, args.Tq, args.D);
        const AttentionRows<T> douts = query_rows(dout, grad_args.dout, row, head, args.Tq, args.Dv);
        const SavedRows saved = saved_rows(ends, delta, grad_args, row, head);
        for (int query = seeing.first / Tile::block * Tile::block; query < seeing.end; query += Tile::block) {
          simdgroup_float8x8 products[Tile::score_fragments];
          float weights[8];
          float by_dot[8];
          multiply_rows<Tile, false>(products, k_rows, first_key, queries, query, team);
          read_products<Tile>(by_dot, products, team);
          multiply_rows<Tile, false>(products, v_rows, first_key, douts, query, team);
          read_products<Tile>(weights, products, team);
          const bool seen_all = keys.sees_all({query, min(query + Tile::block, args.Tq)}, tile);
          for (int j = 0; j < 8; ++j) {
            const int other = query + team.own_column() + j;
            const AttentionPairGradient pair =
                pair_gradient<T>(by_dot[j], weights[j], other, key, seen_all, saved.at(other), keys, mask_rows, scale);
            weights[j] = pair.weight;
            by_dot[j] = pair.by_dot;
          }
          write_weights<Tile>(weights, team);
          add_products(dv_sums, douts, query, column, team);
          write_weights<Tile>(by_dot, team);
          add_products(dk_sums, queries, query, column, team);
        }
      }
    }
  }

  const int rows = attention_of_prefix ? args.P : args.Tk;
  const int64_t first = ((attention_of_prefix ? 0 : int64_t(group.z)) * args.kv_heads + kv_head) * rows;
  if (attention_has_depth) {
    store_sums(dk + first * args.D, first_row, rows, column, args.D, dk_sums, args.scale, team);
  }
  if (attention_has_values) {
    store_sums(dv + first * args.Dv, first_row, rows, column, args.Dv, dv_sums, 1.0f, team);
  }
}

template <typename T>
[[kernel, max_total_threads_per_threadgroup(128)]] void attention_grad_mask(
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
    device T* dmask [[buffer(11)]],
    constant AttentionGradArgs& grad_args [[buffer(12)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]
) {
  using Tile = AttentionTile<T, 64, 4, 1>;
  threadgroup float4 memory[Tile::size];
  threadgroup float strip_sums[4 * Tile::block];
  const AttentionTeam<Tile> team = attention_team<Tile>(memory, thread_index, simdgroup, lane);
  constant AttentionArgs& args = grad_args.forward;

  // Along a dimension of length 1 the tile takes everything in.
  constant int32_t* shape = grad_args.mask_shape;
  const int batch = int(group.z) / shape[1];
  const int head = int(group.z) % shape[1];
  const bool sums_rows = shape[2] == 1;
  const bool sums_columns = shape[3] == 1;
  const int first_query = int(group.y) * Tile::rows;
  const int first_key = int(group.x) * Tile::block;
  float sums[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};

  if (attention_has_pairs) {
    const AttentionRange rows = shape[0] == 1 ? AttentionRange{0, args.B} : AttentionRange{batch, batch + 1};
    const AttentionRange heads = shape[1] == 1 ? AttentionRange{0, args.heads} : AttentionRange{head, head + 1};
    const int end_query = sums_rows ? args.Tq : min(first_query + 1, args.Tq);
    const int end_key = sums_columns ? args.P + args.Tk : first_key + 1;
    for (int row = rows.first; row < rows.end; ++row) {
      const AttentionKeys keys = attention_keys(args, starts, lengths, uint(row));
      const AttentionScale scale = attention_scale(args);
      for (int h = heads.first; h < heads.end; ++h) {
        const uint kv_head = uint(h / (args.heads / args.kv_heads));
        const AttentionMaskRows mask_rows = attention_mask_rows(mask, args, uint(row), uint(h));
        const AttentionRows<T> queries = query_rows(q, args.q, uint(row), uint(h), args.Tq, args.D);
        const AttentionRows<T> douts = query_rows(dout, grad_args.dout, uint(row), uint(h), args.Tq, args.Dv);
        const AttentionRows<T> k_rows = key_rows(k, prefix_k, args.k, args.prefix_k, uint(row), kv_head, keys, args.D);
        const AttentionRows<T> v_rows = key_rows(v, prefix_v, args.v, args.prefix_v, uint(row), kv_head, keys, args.Dv);
        const SavedRows saved = saved_rows(ends, delta, grad_args, uint(row), uint(h));
        for (int query = first_query; query < end_query; query += Tile::rows) {
          const AttentionRange tile{query, min(query + Tile::rows, args.Tq)};
          const AttentionRange seen = keys.seen_by(tile);
          for (int key = first_key; key < end_key; key += Tile::block) {
            if (key < seen.end && key + Tile::block > seen.first) {
              AttentionPairGradient pairs[8];
              query_pairs<Tile>(pairs, queries, douts, tile, k_rows, v_rows, key, saved, keys, mask_rows, scale, team);
              for (int j = 0; j < 8; ++j) {
                sums[j] += pairs[j].by_score;
              }
            }
          }
        }
      }
    }
  }

  if (sums_columns) {
    float sum = 0.0f;
    for (int j = 0; j < 8; ++j) {
      sum += sums[j];
    }
    sum += simd_shuffle_xor(sum, ushort(1));
    sum += simd_shuffle_xor(sum, ushort(2));
    sums[0] = sum;
  }
  if (sums_rows) {
    for (int j = 0; j < 8; ++j) {
      sums[j] += simd_shuffle_xor(sums[j], ushort(4));
      sums[j] += simd_shuffle_xor(sums[j], ushort(8));
      sums[j] += simd_shuffle_xor(sums[j], ushort(16));
      if (lane < 4) {
        strip_sums[team.strip * Tile::block + team.own_column() + j] = sums[j];
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int j = 0; j < 8; ++j) {
      sums[j] = 0.0f;
      for (int s = 0; s < 4; ++s) {
        sums[j] += strip_sums[s * Tile::block + team.own_column() + j];
      }
    }
  }
  const int query = sums_rows ? team.own_row() : first_query + team.own_row();
  if (query < shape[2]) {
    const int64_t first = (int64_t(group.z) * shape[2] + query) * shape[3];
    for (int j = 0; j < 8; ++j) {
      const int key = sums_columns ? team.own_column() + j : first_key + team.own_column() + j;
      if (key < shape[3]) {
        dmask[first + key] = T(sums[j]);
      }
    }
  }
}

[[kernel, max_total_threads_per_threadgroup(256)]] void attention_grad_sinks(
    device const float* sinks [[buffer(0)]],
    device const float* ends [[buffer(1), function_constant(attention_has_pairs)]],
    device const float* delta [[buffer(2), function_constant(attention_has_pairs)]],
    device float* dsinks [[buffer(3)]],
    constant AttentionGradArgs& args [[buffer(4)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]
) {
  threadgroup float partial_sums[8];
  const uint head = group.x;
  const float sink = sinks[head * args.forward.sinks_stride];
  float sum = 0.0f;
  if (attention_has_pairs) {
    for (int row = 0; row < args.forward.B; ++row) {
      const SavedRows saved = saved_rows(ends, delta, args, uint(row), head);
      for (int query = int(thread_index); query < args.forward.Tq; query += 256) {
        const AttentionSavedRow x = saved.at(query);
        if (x.inverse != 0.0f) {
          sum -= x.weight(sink * log2_e) * x.delta;
        }
      }
    }
  }
  sum = simd_sum(sum);
  if (lane == 0) {
    partial_sums[simdgroup] = sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (thread_index == 0) {
    for (int s = 1; s < 8; ++s) {
      sum += partial_sums[s];
    }
    dsinks[head] = sum;
  }
}

#define instantiate_queries(dtype, T, HEAD, PARTS) \
  instantiate_kernel("attention_grad_queries_" #dtype "_" #HEAD, attention_grad_queries, T, HEAD, 4, PARTS)
#define instantiate_keys(dtype, T, HEAD, STRIPS, PARTS) \
  instantiate_kernel("attention_grad_keys_" #dtype "_" #HEAD, attention_grad_keys, T, HEAD, STRIPS, PARTS)
#define instantiate_head(dtype, T, HEAD) instantiate_queries(dtype, T, HEAD, 1) instantiate_keys(dtype, T, HEAD, 4, 1)
#define instantiate_dtype(dtype, T)                                                                            \
  instantiate_kernel("attention_delta_" #dtype, attention_delta, T)                                            \
      instantiate_kernel("attention_grad_mask_" #dtype, attention_grad_mask, T) instantiate_head(dtype, T, 64) \
          instantiate_head(dtype, T, 72) instantiate_head(dtype, T, 80) instantiate_head(dtype, T, 96)         \
              instantiate_head(dtype, T, 128) instantiate_queries(dtype, T, 192, 1)                            \
                  instantiate_keys(dtype, T, 192, 4, 2) instantiate_queries(dtype, T, 256, 1)                  \
                      instantiate_keys(dtype, T, 256, 4, 2) instantiate_queries(dtype, T, 512, 2)              \
                          instantiate_keys(dtype, T, 512, 2, 4)

// clang-format off
instantiate_dtype(float32, float)
instantiate_dtype(float16, half)
instantiate_dtype(bfloat16, bfloat)
