#pragma once

#include <metal_stdlib>

#include "kernels/args/attention.h"

// What all forms of attention share: which keys a query sees, and the score of one it sees. Keys are numbered over the
// prefix and the row's own keys together, 0 <= key < P + Tk, so that a prefix changes nothing in how they are walked.

constant bool attention_has_pairs [[function_constant(0)]];  // of a query and a key: else nothing is read
constant bool attention_has_own [[function_constant(1)]];    // pairs with own keys
constant bool attention_has_prefix [[function_constant(2)]]; // pairs with keys of the prefix
constant bool attention_has_mask [[function_constant(3)]];
constant bool attention_mask_is_additive [[function_constant(4)]];
constant bool attention_has_starts [[function_constant(5)]];
constant bool attention_has_lengths [[function_constant(6)]];
constant bool attention_has_softcap [[function_constant(7)]];

constant constexpr float log2_e = 1.44269504088896340736f;

// The score of a hidden key. Scores of visible ones are above it, so that it marks them without a second table. Finite:
// the difference of two is a number.
constant constexpr float hidden_score = -3.4028234663852886e38f;
constant constexpr float lowest_score = -1.7e38f;
constant constexpr float largest_float = 3.4028234663852886e38f;

// A stretch of keys or queries.
struct AttentionRange {
  int first;
  int end;
};

// The keys that the queries of one row of the batch see.
struct AttentionKeys {
  int prefix;    // keys before the row's own
  int first_own; // own keys that starts and lengths leave
  int end_own;
  int diagonal; // number of the key at the position of query 0
  int reach_left;
  int reach_right;
  int queries;

  bool exists(int key) const thread {
    return key < prefix || (key >= first_own && key < end_own);
  }

  bool sees(int query, int key) const thread {
    const int distance = key - (query + diagonal);
    return distance <= reach_right && -distance <= reach_left && exists(key);
  }

  // Whether each of the queries sees all of the keys.
  bool sees_all(AttentionRange queries, AttentionRange keys) const thread {
    const bool all_exist =
        keys.end <= prefix || (keys.end <= end_own && (keys.first >= first_own || first_own == prefix));
    return all_exist && keys.end - 1 - (queries.first + diagonal) <= reach_right &&
           queries.end - 1 + diagonal - keys.first <= reach_left;
  }

  // The least range that holds all keys that any of the queries sees.
  AttentionRange seen_by(AttentionRange queries) const thread {
    const int existing = end_own > first_own ? end_own : prefix;
    AttentionRange keys;
    keys.first = metal::max(0, queries.first + diagonal - reach_left);
    keys.end = metal::min(existing, queries.end + diagonal + reach_right);
    return keys;
  }

  // The least range that holds all queries that see any of the keys.
  AttentionRange seeing(AttentionRange keys) const thread {
    const bool any = keys.first < prefix || (metal::max(keys.first, first_own) < metal::min(keys.end, end_own));
    AttentionRange range;
    range.first = any ? metal::max(0, keys.first - diagonal - reach_right) : 0;
    range.end = any ? metal::min(queries, keys.end - diagonal + reach_left) : 0;
    return range;
  }

  // The first block of `size` keys at or after `key`, itself a multiple of it, that is not all within the keys which
  // `starts` hides.
  int skip_hidden(int key, int size) const thread {
    return key >= prefix && key + size <= first_own ? first_own / size * size : key;
  }
};

inline AttentionKeys attention_keys(
    constant AttentionArgs& args, device const int* starts, device const int* lengths, uint row
) {
  AttentionKeys keys;
  keys.prefix = args.P;
  keys.first_own = args.P;
  keys.end_own = args.P + args.Tk;
  if (attention_has_starts) {
    keys.first_own += metal::clamp(starts[row * args.starts_stride], 0, args.Tk);
  }
  if (attention_has_lengths) {
    keys.end_own = args.P + metal::clamp(lengths[row * args.lengths_stride], 0, args.Tk);
  }
  keys.diagonal = args.P + args.Tk - args.Tq;
  keys.reach_left = args.reach_left;
  keys.reach_right = args.reach_right;
  keys.queries = args.Tq;
  return keys;
}

// The mask of one head of one row: bytes of bool, or numbers of T.
struct AttentionMaskRows {
  device const uchar* data;
  int64_t offset; // elements
  int64_t row_stride;
  int64_t column_stride;

  int64_t at(int query, int key) const thread {
    return offset + query * row_stride + key * column_stride;
  }
};

inline AttentionMaskRows attention_mask_rows(
    device const uchar* mask, constant AttentionArgs& args, uint row, uint head
) {
  AttentionMaskRows rows;
  rows.data = mask;
  rows.offset = row * args.mask.batch + head * args.mask.head;
  rows.row_stride = args.mask.row;
  rows.column_stride = args.mask.column;
  return rows;
}

// tanh(x) for |x| < 88, where it has long been 1.
inline float bounded_tanh(float x) {
  return metal::precise::tanh(x > 20.0f ? 20.0f : x < -20.0f ? -20.0f : x);
}

// What makes a score of a dot product, read once: see AttentionArgs.
struct AttentionScale {
  float score;
  float softcap;

  float tanh(float dot) const thread {
    return bounded_tanh(dot * score);
  }

  // In base 2, before any mask: a NaN stays one.
  float of(float dot) const thread {
    return attention_has_softcap ? softcap * tanh(dot) : dot * score;
  }
};

inline AttentionScale attention_scale(constant AttentionArgs& args) {
  return {args.score_scale, args.softcap};
}

// With the mask applied.
template <typename T>
inline float mask_score(float score, int query, int key, thread const AttentionMaskRows& mask) {
  if (attention_has_mask) {
    const int64_t at = mask.at(query, key);
    if (attention_mask_is_additive) {
      const float addend = float(reinterpret_cast<device const T*>(mask.data)[at]);
      if (addend == -INFINITY) {
        return hidden_score;
      }
      score += addend * log2_e;
    } else if (mask.data[at] == 0) {
      return hidden_score;
    }
  }
  return score < lowest_score ? lowest_score : score;
}

// What a score does to the maximum: a NaN tells that something is visible, and shows in the weights.
inline float bound_of_score(float score) {
  return score == hidden_score || score >= lowest_score ? score : lowest_score;
}

// The score of any pair; `seen_all` promises that the query sees the key but for the mask.
template <typename T>
inline float score_of_pair(
    float dot,
    int query,
    int key,
    bool seen_all,
    thread const AttentionKeys& keys,
    thread const AttentionMaskRows& mask,
    thread const AttentionScale& scale
) {
  if (!(seen_all || keys.sees(query, key)) || query >= keys.queries) {
    return hidden_score;
  }
  return mask_score<T>(scale.of(dot), query, key, mask);
}

// What sums come to: the reciprocal of the denominator with the factor of the sums, and the log-sum-exp as the greatest
// score and the sum of weights beside it, which in one number would be lost where scores are large.
struct AttentionEnd {
  float factor;
  float m;
  float l; // 0 where nothing is visible
};

inline AttentionEnd attention_end(float m, float l, bool has_sink, float sink) {
  if (m == hidden_score) {
    return {0.0f, 0.0f, 0.0f};
  }
  float factor = 1.0f;
  if (has_sink) {
    const float best = metal::max(sink * log2_e, m);
    factor = metal::fast::exp2(metal::max(m - best, -1000.0f));
    l = l * factor + metal::fast::exp2(metal::max(sink * log2_e - best, -1000.0f));
    m = best;
  }
  return {factor / l, m, l};
}

// The two numbers of a query that the gradients need.
inline void store_end(device float* ends, int64_t query, thread const AttentionEnd& end) {
  ends[2 * query] = end.m;
  ends[2 * query + 1] = end.l;
}
