#pragma once

#include <metal_stdlib>

#include "kernels/args/gated_delta.h"
#include "kernels/common/token_range.h"

constant bool conv_has_state [[function_constant(2)]];
constant bool conv_with_silu [[function_constant(3)]];

// Input `t` of a channel, where its row begins at token `begin`.
template <typename T>
inline T conv_source(
    device const T* x, device const T* state, constant CausalConv1dArgs& args, uint row, int begin, int t, int channel
) {
  if (t >= begin) {
    return x[row * args.x_strides[0] + t * args.x_strides[1] + channel * args.x_strides[2]];
  }
  if (!conv_has_state) {
    return T(0.0f);
  }
  const int index = args.K - 1 + t - begin;
  return state[row * args.state_strides[0] + index * args.state_strides[1] + channel * args.state_strides[2]];
}

// The sum of token `t`.
template <typename T>
inline float conv_sum(
    device const T* x,
    device const T* weight,
    device const T* state,
    constant CausalConv1dArgs& args,
    uint row,
    int begin,
    int t,
    int channel
) {
  float sum = 0.0f;
  for (int j = 0; j < args.K; ++j) {
    const float w = float(weight[channel * args.weight_strides[0] + j * args.weight_strides[1]]);
    sum += w * float(conv_source(x, state, args, row, begin, t - (args.K - 1) + j, channel));
  }
  return sum;
}
