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
