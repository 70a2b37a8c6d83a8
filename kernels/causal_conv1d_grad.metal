// The gradients of causal_conv1d, from those of y and of the last K - 1 rows. With s_t the sum of token t before the
// activation:
//
//   ds_t = dy_t activation'(s_t)     dx_t = sum_j weight[j] ds_{t + K - 1 - j}     dweight[j] = sum_t ds_t x_{t - K + 1
//   + j}
//
// where the rows of the state are the tokens before the first, and what was kept of the last K - 1 adds its gradient.
//
//   sums     one thread for each ds, in float32
//   inputs   one thread for each dx, and for each row of dstate, whose rows follow those of dx in the grid
//   weights  one thread for each tap and channel of 256 tokens of a row
//   reduce   one thread for each tap and channel, which adds those up in order
//
// Tokens outside of a row's range have gradients of zero and are not read.

#include <metal_stdlib>

#include "kernels/common/activation.h"
#include "kernels/common/conv_source.h"
#include "kernels/common/instantiate.h"

using namespace metal;

template <typename T>
[[kernel]] void causal_conv1d_grad_sums(
    device const T* x [[buffer(0)]],
    device const T* weight [[buffer(1)]],
    device const T* state [[buffer(2), function_constant(conv_has_state)]],
    device const int* starts [[buffer(3), function_constant(range_has_starts)]],
    device const int* lengths [[buffer(4), function_constant(range_has_lengths)]],
    device const T* dy [[buffer(5)]],
    device float* ds [[buffer(6)]],
    constant CausalConv1dGradArgs& grad_args [[buffer(7)]],
    uint3 position [[thread_position_in_grid]]
) {
  constant CausalConv1dArgs& args = grad_args.forward;
  const int channel = int(position.x);
  const int t = int(position.y);
  const uint row = position.z;
  if (channel >= args.C || t >= args.T) {
    return;
  }
  device const T* state_rows = nullptr;
  if (conv_has_state) {
    state_rows = state;
  }
  device const int* row_starts = nullptr;
  device const int* row_lengths = nullptr;
  if (range_has_starts) {
    row_starts = starts;
  }
  if (range_has_lengths) {
    row_lengths = lengths;
  }
  const int2 range = token_range(row_starts, args.starts_stride, row_lengths, args.lengths_stride, row, args.T);
  float gradient = 0.0f;
  if (t >= range.x && t < range.y) {
    constant int64_t* strides = grad_args.dy_strides;
    gradient = float(dy[row * strides[0] + t * strides[1] + channel * strides[2]]);
    if (conv_with_silu) {
      const float sum = conv_sum(x, weight, state_rows, args, row, range.x, t, channel);
      const float s = sigmoid(sum);
      gradient *= s * (1.0f + sum * (1.0f - s));
    }
  }
  ds[(int64_t(row) * args.T + t) * args.C + channel] = gradient;
}

template <typename T>
[[kernel]] void causal_conv1d_grad_inputs(
    device const T* weight [[buffer(0)]],
    device const int* starts [[buffer(1), function_constant(range_has_starts)]],
    device const int* lengths [[buffer(2), function_constant(range_has_lengths)]],
    device const float* ds [[buffer(3)]],
    device const T* dlast [[buffer(4)]],
    device T* dx [[buffer(5)]],
    device float* dstate [[buffer(6)]],
    constant CausalConv1dGradArgs& grad_args [[buffer(7)]],
    uint3 position [[thread_position_in_grid]]
) {
  constant CausalConv1dArgs& args = grad_args.forward;
  const int channel = int(position.x);
  const int place = int(position.y);
  const uint row = position.z;
  if (channel >= args.C || place >= args.T + args.K - 1) {
    return;
  }
  device const int* row_starts = nullptr;
  device const int* row_lengths = nullptr;
  if (range_has_starts) {
    row_starts = starts;
  }
  if (range_has_lengths) {
    row_lengths = lengths;
  }
  const int2 range = token_range(row_starts, args.starts_stride, row_lengths, args.lengths_stride, row, args.T);
  const bool of_state = place >= args.T;
  const int t = of_state ? range.x - (args.K - 1) + place - args.T : place; // from -(K - 1) before the first token on
  float gradient = 0.0f;
  if (of_state || (t >= range.x && t < range.y)) {
    for (int j = 0; j < args.K; ++j) {
      const int user = t + args.K - 1 - j;
      if (user >= range.x && user < range.y) {
        const float w = float(weight[channel * args.weight_strides[0] + j * args.weight_strides[1]]);
        gradient += w * ds[(int64_t(row) * args.T + user) * args.C + channel];
      }
    }
    const int kept = t - range.y + args.K - 1;
    if (kept >= 0) {
      constant int64_t* strides = grad_args.dlast_strides;
      gradient += float(dlast[row * strides[0] + kept * strides[1] + channel * strides[2]]);
    }
  }
  if (of_state) {
    dstate[(int64_t(row) * (args.K - 1) + place - args.T) * args.C + channel] = gradient;
  } else {
    dx[(int64_t(row) * args.T + t) * args.C + channel] = T(gradient);
  }
}

template <typename T>
[[kernel]] void causal_conv1d_grad_weights(
    device const T* x [[buffer(0)]],
    device const T* state [[buffer(1), function_constant(conv_has_state)]],
    device const int* starts [[buffer(2), function_constant(range_has_starts)]],
    device const int* lengths [[buffer(3), function_constant(range_has_lengths)]],
    device const float* ds [[buffer(4)]],
    device float* parts [[buffer(5)]],
    constant CausalConv1dGradArgs& grad_args [[buffer(6)]],
    uint3 position [[thread_position_in_grid]]
) {
  constant CausalConv1dArgs& args = grad_args.forward;
  const int channel = int(position.x);
  const int tap = int(position.y);
  const uint row = position.z / uint(grad_args.blocks);
  const int block = int(position.z % uint(grad_args.blocks));
  if (channel >= args.C || tap >= args.K) {
    return;
  }
  device const T* state_rows = nullptr;
  if (conv_has_state) {
    state_rows = state;
  }
  device const int* row_starts = nullptr;
  device const int* row_lengths = nullptr;
  if (range_has_starts) {
    row_starts = starts;
  }
  if (range_has_lengths) {
    row_lengths = lengths;
  }
  const int2 range = token_range(row_starts, args.starts_stride, row_lengths, args.lengths_stride, row, args.T);
  const int end = min(range.y, (block + 1) * CAUSAL_CONV1D_BLOCK);
  float sum = 0.0f;
  for (int t = max(range.x, block * CAUSAL_CONV1D_BLOCK); t < end; ++t) {
    const float source = float(conv_source(x, state_rows, args, row, range.x, t - (args.K - 1) + tap, channel));
    sum += ds[(int64_t(row) * args.T + t) * args.C + channel] * source;
  }
  parts[(int64_t(position.z) * args.K + tap) * args.C + channel] = sum;
}

template <typename T>
[[kernel]] void causal_conv1d_grad_reduce(
    device const float* parts [[buffer(0)]],
    device T* dweight [[buffer(1)]],
    constant CausalConv1dGradArgs& grad_args [[buffer(2)]],
    uint3 position [[thread_position_in_grid]]
) {
  constant CausalConv1dArgs& args = grad_args.forward;
  const int channel = int(position.x);
  const int tap = int(position.y);
  if (channel >= args.C || tap >= args.K) {
    return;
  }
  float sum = 0.0f;
  for (int part = 0; part < grad_args.B * grad_args.blocks; ++part) {
    sum += parts[(int64_t(part) * args.K + tap) * args.C + channel];
  }
  dweight[int64_t(channel) * args.K + tap] = T(sum);
}

// clang-format off
instantiate_kernel("causal_conv1d_grad_sums_float32", causal_conv1d_grad_sums, float)
instantiate_kernel("causal_conv1d_grad_sums_float16", causal_conv1d_grad_sums, half)
instantiate_kernel("causal_conv1d_grad_sums_bfloat16", causal_conv1d_grad_sums, bfloat)
instantiate_kernel("causal_conv1d_grad_inputs_float32", causal_conv1d_grad_inputs, float)
instantiate_kernel("causal_conv1d_grad_inputs_float16", causal_conv1d_grad_inputs, half)
instantiate_kernel("causal_conv1d_grad_inputs_bfloat16", causal_conv1d_grad_inputs, bfloat)
instantiate_kernel("causal_conv1d_grad_weights_float32", causal_conv1d_grad_weights, float)
instantiate_kernel("causal_conv1d_grad_weights_float16", causal_conv1d_grad_weights, half)
instantiate_kernel("causal_conv1d_grad_weights_bfloat16", causal_conv1d_grad_weights, bfloat)
instantiate_kernel("causal_conv1d_grad_reduce_float32", causal_conv1d_grad_reduce, float)
instantiate_kernel("causal_conv1d_grad_reduce_float16", causal_conv1d_grad_reduce, half)
instantiate_kernel("causal_conv1d_grad_reduce_bfloat16", causal_conv1d_grad_reduce, bfloat)
