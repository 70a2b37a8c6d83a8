// y_t = activation(sum_j weight[c, j] x_{t - K + 1 + j, c}), and the last K - 1 inputs of each row.
//
//   each thread: one channel of one row of y, or of the new state, whose rows follow those of y in the grid
//
// Before a row's first token stand the K - 1 rows of its state; tokens outside of its range give zeros. Sums in
// float32, one rounding.

#include <metal_stdlib>

#include "kernels/common/activation.h"
#include "kernels/common/conv_source.h"
#include "kernels/common/instantiate.h"

using namespace metal;

template <typename T>
[[kernel]] void causal_conv1d(
    device const T* x [[buffer(0)]],
    device const T* weight [[buffer(1)]],
    device const T* state [[buffer(2), function_constant(conv_has_state)]],
    device const int* starts [[buffer(3), function_constant(range_has_starts)]],
    device const int* lengths [[buffer(4), function_constant(range_has_lengths)]],
    device T* y [[buffer(5)]],
    device T* new_state [[buffer(6)]],
    constant CausalConv1dArgs& args [[buffer(7)]],
    uint3 position [[thread_position_in_grid]]
) {
  const int channel = int(position.x);
  const int t = int(position.y);
  const uint row = position.z;
  if (channel >= args.C || t >= args.T + args.K - 1) {
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
  if (t >= args.T) {
    const int kept = t - args.T;
    const int source = range.y - (args.K - 1) + kept;
    new_state[(int64_t(row) * (args.K - 1) + kept) * args.C + channel] =
        conv_source(x, state_rows, args, row, range.x, source, channel);
    return;
  }
  float sum = 0.0f;
  if (t >= range.x && t < range.y) {
    sum = conv_sum(x, weight, state_rows, args, row, range.x, t, channel);
  }
  y[(int64_t(row) * args.T + t) * args.C + channel] = T(conv_with_silu ? silu(sum) : sum);
}

// clang-format off
instantiate_kernel("causal_conv1d_float32", causal_conv1d, float)
instantiate_kernel("causal_conv1d_float16", causal_conv1d, half)
instantiate_kernel("causal_conv1d_bfloat16", causal_conv1d, bfloat)
