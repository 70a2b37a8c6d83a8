#pragma once

#include <metal_stdlib>

#include "kernels/common/attention_scores.h"

// The gradients of one pair of a query and a key, from what the forward pass saved of the query:
//   weight = 2^(score - m) / l
//   by the score: weight (dweight - delta),  dweight = dout . v,  delta = dout . out
struct AttentionPairGradient {
  float weight;
  float by_score; // softcap and mask applied: also the gradient of an additive mask
  float by_dot;   // of scale q . k, softcap not yet applied
};

struct AttentionSavedRow {
  float m;
  float inverse; // of l; 0 where nothing is visible
  float delta;

  float weight(float score) const thread {
    const float exponent = score - m; // above 0 by rounding alone
    return metal::fast::exp2(exponent > 0.0f ? 0.0f : exponent) * inverse;
  }
};

// What the forward pass saved of the queries of one head.
struct SavedRows {
  device const float* ends;
  device const float* delta;
  int64_t stride; // of ends
  int64_t column_stride;
  int queries;

  AttentionSavedRow at(int query) const thread {
    AttentionSavedRow row{0.0f, 0.0f, 0.0f};
    if (query < queries) {
      device const float* end = ends + query * stride;
      const float l = end[column_stride];
      row.m = end[0];
      row.inverse = l == 0.0f ? 0.0f : 1.0f / l;
      row.delta = delta[query];
    }
    return row;
  }
};

inline SavedRows saved_rows(
    device const float* ends, device const float* delta, constant AttentionGradArgs& args, uint row, uint head
) {
  SavedRows rows;
  rows.ends = ends + (row * args.ends.batch + head * args.ends.head);
  rows.delta = delta + (int64_t(row) * args.forward.heads + head) * args.forward.Tq;
  rows.stride = args.ends.row;
  rows.column_stride = args.ends.column;
  rows.queries = args.forward.Tq;
  return rows;
}

template <typename T>
inline AttentionPairGradient pair_gradient(
    float dot,
    float dweight,
    int query,
    int key,
    bool seen_all,
    AttentionSavedRow saved,
    thread const AttentionKeys& keys,
    thread const AttentionMaskRows& mask,
    thread const AttentionScale& scale
) {
  AttentionPairGradient gradient{0.0f, 0.0f, 0.0f};
  const float score = score_of_pair<T>(dot, query, key, seen_all, keys, mask, scale);
  if (score == hidden_score) {
    return gradient;
  }
  gradient.weight = saved.weight(score);
  gradient.by_score = gradient.weight * (dweight - saved.delta);
  const float t = attention_has_softcap ? scale.tanh(dot) : 0.0f;
  gradient.by_dot = gradient.by_score * (1.0f - t * t);
  return gradient;
}
