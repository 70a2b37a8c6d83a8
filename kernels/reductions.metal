// row_sum, row_max and logsumexp give one value for each row; softmax and l2_normalize the row scaled by one.
//
//   for each row, a team of threads (common/row_team.h):
//     sum          sum x
//     max          max x, NaN when there is one
//     logsumexp    m + log(sum e), m = max x, e = exp(x - m), both in one pass over the row
//     softmax      e / sum e
//     l2_normalize x / max(sqrt(sum x^2), eps)
//
// In float32, with one rounding. Where x = m, e is 1 without a subtraction: a row of minus infinity alone is then
// uniform, and its logsumexp minus infinity. The maximum passes a NaN over, but its e is NaN, and so is the sum.

#include <metal_stdlib>

#include "kernels/args/reductions.h"
#include "kernels/common/instantiate.h"
#include "kernels/common/row_team.h"
#include "kernels/common/rows.h"

using namespace metal;

constant int reduction [[function_constant(1)]]; // a Reduction
constant bool reduction_vector_x [[function_constant(2)]];
constant bool reduction_vector_out [[function_constant(3)]];

inline float exponential(float x, float most) {
  return x == most ? 1.0f : precise::exp(x - most);
}

inline float4 exponentials(float4 x, float most) {
  return float4(exponential(x[0], most), exponential(x[1], most), exponential(x[2], most), exponential(x[3], most));
}

inline float greatest_of(float4 x) {
  return fmax(fmax(x[0], x[1]), fmax(x[2], x[3]));
}

// The greatest element of a row, NaN passed over, and the sum of e^(x - most).
struct SoftmaxEnd {
  float most;
  float sum;
};

// A reduction of one row of x, by its team.
template <typename T>
struct ReducedRow {
  device const T* x;
  int64_t stride;
  int columns;
  float4 kept[row_turn]; // what the last turn loaded

  float4 load(int column) const thread {
    return row_load(x, stride, reduction_vector_x, column, columns);
  }

  float sum(threadgroup float* shared, thread const RowTeam& team) const {
    float total = 0.0f;
    for (int column = team.index * 4; column < columns; column += team.size * 4) {
      total += sum_of(load(column));
    }
    return row_team_sum(total, shared, team);
  }

  float sum_of_squares(threadgroup float* shared, thread const RowTeam& team) thread {
    float total = 0.0f;
    for (int first = team.index * 4; first < columns; first += row_turn * team.step()) {
#pragma clang loop unroll(full)
      for (int i = 0; i < row_turn; ++i) {
        const int column = first + i * team.step();
        if (column < columns) {
          kept[i] = load(column);
          total += sum_of(kept[i] * kept[i]);
        }
      }
    }
    return row_team_sum(total, shared, team);
  }

  // NaN when there is one in the row.
  float greatest(threadgroup float* shared, thread const RowTeam& team) const {
    float most = -INFINITY;
    float nan = 0.0f;
    for (int column = team.index * 4; column < columns; column += team.size * 4) {
      const float4 v = load(column);
      most = fmax(most, greatest_of(first_of(v, columns - column, -INFINITY)));
      for (int i = 0; i < 4; ++i) {
        nan += isnan(v[i]) ? v[i] : 0.0f;
      }
    }
    most = row_team_max(most, shared, team);
    return most + row_team_sum(nan, shared, team);
  }

  // Both in one pass: what is summed is scaled down as the maximum grows.
  SoftmaxEnd exponentials_sum(threadgroup float* shared, thread const RowTeam& team) thread {
    float most = -INFINITY;
    float sum = 0.0f;
    for (int first = team.index * 4; first < columns; first += row_turn * team.step()) {
#pragma clang loop unroll(full)
      for (int i = 0; i < row_turn; ++i) {
        const int column = first + i * team.step();
        if (column < columns) {
          const int count = columns - column;
          kept[i] = load(column);
          const float before = most;
          most = fmax(most, greatest_of(first_of(kept[i], count, -INFINITY)));
          sum = sum * exponential(before, most) + sum_of(first_of(exponentials(kept[i], most), count, 0.0f));
        }
      }
    }
    SoftmaxEnd end;
    end.most = row_team_max(most, shared, team);
    end.sum = row_team_sum(sum * exponential(most, end.most), shared, team);
    return end;
  }
};

template <typename T>
[[kernel, max_total_threads_per_threadgroup(1024)]] void reduce_rows(
    device const T* x [[buffer(0)]],
    device T* out [[buffer(1)]],
    constant ReductionArgs& args [[buffer(2)]],
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
  ReducedRow<T> row;
  row.x = x + row_offset(team.row, args.rows, args.x);
  row.stride = args.x.column_stride;
  row.columns = args.rows.columns;

  float result = 0.0f;
  if (reduction == REDUCTION_SUM) {
    result = row.sum(shared, team);
  } else if (reduction == REDUCTION_MAX) {
    result = row.greatest(shared, team);
  } else {
    const SoftmaxEnd end = row.exponentials_sum(shared, team);
    result = end.most + precise::log(end.sum);
  }
  if (team.index == 0) {
    out[team.row] = T(result);
  }
}

template <typename T>
[[kernel, max_total_threads_per_threadgroup(1024)]] void scale_rows(
    device const T* x [[buffer(0)]],
    device T* out [[buffer(1)]],
    constant ReductionArgs& args [[buffer(2)]],
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
  ReducedRow<T> row;
  row.x = x + row_offset(team.row, args.rows, args.x);
  row.stride = args.x.column_stride;
  row.columns = columns;
  device T* out_row = out + team.row * columns;

  float most = 0.0f;
  float scale = 0.0f;
  if (reduction == REDUCTION_SOFTMAX) {
    const SoftmaxEnd end = row.exponentials_sum(shared, team);
    most = end.most;
    scale = 1.0f / end.sum;
  } else {
    const float norm = precise::sqrt(row.sum_of_squares(shared, team));
    scale = 1.0f / (norm < args.eps ? args.eps : norm);
  }
  const bool keeps = team.keeps(columns);
  for (int first = team.index * 4; first < columns; first += row_turn * team.step()) {
#pragma clang loop unroll(full)
    for (int i = 0; i < row_turn; ++i) {
      const int column = first + i * team.step();
      if (column < columns) {
        const float4 x = keeps ? row.kept[i] : row.load(column);
        const float4 y = reduction == REDUCTION_SOFTMAX ? exponentials(x, most) : x;
        row_store(out_row, y * scale, reduction_vector_out, column, columns);
      }
    }
  }
}

// clang-format off
instantiate_kernel("reduce_rows_float32", reduce_rows, float)
instantiate_kernel("reduce_rows_float16", reduce_rows, half)
instantiate_kernel("reduce_rows_bfloat16", reduce_rows, bfloat)
instantiate_kernel("scale_rows_float32", scale_rows, float)
instantiate_kernel("scale_rows_float16", scale_rows, half)
instantiate_kernel("scale_rows_bfloat16", scale_rows, bfloat)
