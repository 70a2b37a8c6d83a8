#pragma once

#include <metal_stdlib>

#include "kernels/common/attention_scores.h"

// The gradients of one pair of a query and a key, from what the forward pass saved of the query:
//   weight = exp(score - lse)
//   by the score: weight (dweight - delta),  dweight = dout . v,  delta = dout . out
struct AttentionPairGradient {
  float weight;
  float by_score; // softcap and mask applied: also the gradient of an additive mask
  float by_dot;   // of scale q . k, softcap not yet applied
};

struct AttentionSavedRow {
  float lse;
  float delta;
};

// What the forward pass saved of the queries of one head.
struct SavedRows {
  device const float* lse;
  device const float* delta;
  int64_t stride; // of lse
  int queries;

  AttentionSavedRow at(int query) const thread {
    AttentionSavedRow row{0.0f, 0.0f};
    if (query < queries) {
      row.lse = lse[query * stride];
      row.delta = delta[query];
    }
    return row;
  }
};

inline SavedRows saved_rows(
    device const float* lse, device const float* delta, constant AttentionGradArgs& args, uint row, uint head
) {
  SavedRows rows;
  rows.lse = lse + (row * args.lse.batch + head * args.lse.head);
  rows.delta = delta + (int64_t(row) * args.forward.heads + head) * args.forward.Tq;
  rows.stride = args.lse.row;
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
    constant AttentionArgs& args
) {
  AttentionPairGradient gradient{0.0f, 0.0f, 0.0f};
  const float score = score_of_pair<T>(dot, query, key, seen_all, keys, mask, args);
  if (score == hidden_score) {
    return gradient;
  }
  const float exponent = score - saved.lse * log2_e; // at most 0 but for rounding
  gradient.weight = metal::fast::exp2(exponent > 0.0f ? 0.0f : exponent);
  gradient.by_score = gradient.weight * (dweight - saved.delta);
  const float t = attention_has_softcap ? bounded_tanh(dot * args.score_scale) : 0.0f;
  gradient.by_dot = gradient.by_score * (1.0f - t * t);
  return gradient;
}
