// rms_norm, layer_norm and gated_rms_norm, with the residual sum that precedes them in a layer.
//
//   for each row, a team of threads (common/row_team.h):
//     s = x + residual                                          the second output, where there is a residual
//     m = mean(s) for layer_norm, else 0
//     r = 1 / sqrt(mean((s - m)^2) + eps)
//     out = (s - m) r (weight + weight_offset) + bias, times silu(gate) for gated_rms_norm
//
// All in float32, one rounding at each store; the norm is of the sum before its rounding. The variance is that of the
// centered row: a mean far from zero cancels nothing.
//
// Provenance: Ba, Kiros and Hinton, arXiv 1607.06450; Zhang and Sennrich, arXiv 1910.07467; the gated form is that of
// Qwen3.5 (norm before gate).

#include <metal_stdlib>

#include "kernels/args/norms.h"
#include "kernels/common/activation.h"
#include "kernels/common/instantiate.h"
#include "kernels/common/row_team.h"
#include "kernels/common/rows.h"

using namespace metal;

constant bool norm_centered [[function_constant(1)]]; // layer_norm
constant bool norm_has_residual [[function_constant(2)]];
constant bool norm_has_gate [[function_constant(3)]];
constant bool norm_has_weight [[function_constant(4)]];
constant bool norm_has_bias [[function_constant(5)]];
constant bool norm_vector_x [[function_constant(6)]];
constant bool norm_vector_residual [[function_constant(7)]];
constant bool norm_vector_gate [[function_constant(8)]];
constant bool norm_vector_weight [[function_constant(9)]];
constant bool norm_vector_bias [[function_constant(10)]];
constant bool norm_vector_out [[function_constant(11)]];

// One row of x + residual.
template <typename T>
struct NormInput {
  device const T* x;
  device const T* residual;

  float4 load(constant NormArgs& args, int column) const {
    float4 s = row_load(x, args.x.column_stride, norm_vector_x, column, args.rows.columns);
    if (norm_has_residual) {
      s += row_load(residual, args.residual.column_stride, norm_vector_residual, column, args.rows.columns);
    }
    return s;
  }
};

template <typename T>
[[kernel, max_total_threads_per_threadgroup(1024)]] void norm_rows(
    device const T* x [[buffer(0)]],
    device const T* residual [[buffer(1), function_constant(norm_has_residual)]],
    device const T* gate [[buffer(2), function_constant(norm_has_gate)]],
    device const T* weight [[buffer(3), function_constant(norm_has_weight)]],
    device const T* bias [[buffer(4), function_constant(norm_has_bias)]],
    device T* out [[buffer(5)]],
    device T* sum [[buffer(6), function_constant(norm_has_residual)]],
    constant NormArgs& args [[buffer(7)]],
    uint group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]
) {
  threadgroup float shared[row_team_max_simdgroups];
  const RowTeam team = row_team(group, simdgroup, simdgroups, lane);
  if (team.row >= args.rows.count) {
    return;
  }
  const int columns = args.rows.columns;
  const float scale = 1.0f / float(columns);
  NormInput<T> input;
  input.x = x + row_offset(team.row, args.rows, args.x);
  if (norm_has_residual) {
    input.residual = residual + row_offset(team.row, args.rows, args.residual);
  }

  float4 kept[row_turn]; // what the last turn loaded
  const bool keeps = team.keeps(columns);
  float mean = 0.0f;
  if (norm_centered) {
    for (int first = team.index * 4; first < columns; first += row_turn * team.step()) {
#pragma clang loop unroll(full)
      for (int i = 0; i < row_turn; ++i) {
        const int column = first + i * team.step();
        if (column < columns) {
          kept[i] = input.load(args, column);
          mean += sum_of(kept[i]);
        }
      }
    }
    mean = row_team_sum(mean, shared, team) * scale;
  }
  float variance = 0.0f;
  for (int first = team.index * 4; first < columns; first += row_turn * team.step()) {
#pragma clang loop unroll(full)
    for (int i = 0; i < row_turn; ++i) {
      const int column = first + i * team.step();
      if (column < columns) {
        if (!(norm_centered && keeps)) {
          kept[i] = input.load(args, column);
        }
        const float4 d = first_of(kept[i] - mean, columns - column, 0.0f);
        variance += sum_of(d * d);
      }
    }
  }
  const float r = 1.0f / precise::sqrt(row_team_sum(variance, shared, team) * scale + args.eps);

  device T* out_row = out + team.row * columns;
  for (int first = team.index * 4; first < columns; first += row_turn * team.step()) {
#pragma clang loop unroll(full)
    for (int i = 0; i < row_turn; ++i) {
      const int column = first + i * team.step();
      if (column < columns) {
        const float4 s = keeps ? kept[i] : input.load(args, column);
        float4 y = (s - mean) * r;
        if (norm_has_weight) {
          y *= row_load(weight, args.weight_stride, norm_vector_weight, column, columns) + args.weight_offset;
        }
        if (norm_has_bias) {
          y += row_load(bias, args.bias_stride, norm_vector_bias, column, columns);
        }
        if (norm_has_gate) {
          device const T* gate_row = gate + row_offset(team.row, args.rows, args.gate);
          const float4 g = row_load(gate_row, args.gate.column_stride, norm_vector_gate, column, columns);
          y *= float4(silu(g[0]), silu(g[1]), silu(g[2]), silu(g[3]));
        }
        row_store(out_row, y, norm_vector_out, column, columns);
        if (norm_has_residual) {
          row_store(sum + team.row * columns, s, norm_vector_out, column, columns);
        }
      }
    }
  }
}

// clang-format off
instantiate_kernel("norm_rows_float32", norm_rows, float)
instantiate_kernel("norm_rows_float16", norm_rows, half)
instantiate_kernel("norm_rows_bfloat16", norm_rows, bfloat)
