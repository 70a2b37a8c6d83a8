// Rotary position embedding of one array, or of queries and keys together, each after an RMS norm of its rows.
//
//   for each row x at position p, a team of threads (common/row_team.h):
//     x = x / sqrt(mean(x^2) + eps) (weight + weight_offset)                             with a norm
//     for i < rotary_dim / 2, the pair (a, b) = (x[i], x[i + rotary_dim / 2]), or (x[2 i], x[2 i + 1]) interleaved:
//       angle = float(p) inv_freq[i]
//       (a, b) = (a cos(angle) - b sin(angle), b cos(angle) + a sin(angle))
//     the other columns stay as they are
//
// In float32, with one rounding. The angle is a float32 product, as transformers has it: an exact one would differ from
// it by 1.4e-3 at position 20000. A thread takes four pairs at a time.
//
// Provenance: Su et al., arXiv 2104.09864.

#include <metal_stdlib>

#include "kernels/args/rope.h"
#include "kernels/common/instantiate.h"
#include "kernels/common/row_team.h"
#include "kernels/common/rows.h"

using namespace metal;

constant bool rope_interleaved [[function_constant(1)]];
constant bool rope_has_norm [[function_constant(2)]];
constant bool rope_has_second [[function_constant(3)]];
// Rows of x, of out, of the weights: as in row_load, also from the first column that is not rotated on.
constant bool rope_vector_x [[function_constant(4)]];
constant bool rope_vector_out [[function_constant(5)]];
constant bool rope_vector_weight [[function_constant(6)]];
constant bool rope_has_second_norm [[function_constant(7)]]; // the second array, with a norm

// One row: its input, scaled by its norm, and its output.
template <typename T>
struct RopeRow {
  device const T* x;
  device const T* weight;
  device T* out;
  int64_t x_stride;
  int64_t weight_stride;
  float weight_offset;
  float r; // of the norm

  // Four columns from `column` on that are before `end`.
  float4 load(int column, int end) const {
    float4 v = row_load(x, x_stride, rope_vector_x, column, end);
    if (rope_has_norm) {
      v = v * r * (row_load(weight, weight_stride, rope_vector_weight, column, end) + weight_offset);
    }
    return v;
  }

  void store(float4 v, int column, int end) const {
    row_store(out, v, rope_vector_out, column, end);
  }

  // The pairs [i, i + 4) of rotary_dim / 2.
  void rotate(float4 cosine, float4 sine, int i, int rotary_dim) const {
    if (rope_interleaved) {
      const float4 low = load(2 * i, rotary_dim);
      const float4 high = load(2 * i + 4, rotary_dim);
      const float4 a(low[0], low[2], high[0], high[2]);
      const float4 b(low[1], low[3], high[1], high[3]);
      const float4 first = a * cosine - b * sine;
      const float4 second = b * cosine + a * sine;
      store(float4(first[0], second[0], first[1], second[1]), 2 * i, rotary_dim);
      store(float4(first[2], second[2], first[3], second[3]), 2 * i + 4, rotary_dim);
    } else {
      const int half_dim = rotary_dim / 2;
      const float4 a = load(i, half_dim);
      const float4 b = load(half_dim + i, rotary_dim);
      store(a * cosine - b * sine, i, half_dim);
      store(b * cosine + a * sine, half_dim + i, rotary_dim);
    }
  }
};

template <typename T>
[[kernel, max_total_threads_per_threadgroup(1024)]] void rope_rows(
    device const T* first [[buffer(0)]],
    device const T* second [[buffer(1), function_constant(rope_has_second)]],
    device const int* positions [[buffer(2)]],
    device const float* inv_freq [[buffer(3)]],
    device const T* first_weight [[buffer(4), function_constant(rope_has_norm)]],
    device const T* second_weight [[buffer(5), function_constant(rope_has_second_norm)]],
    device T* first_out [[buffer(6)]],
    device T* second_out [[buffer(7), function_constant(rope_has_second)]],
    constant RopeArgs& args [[buffer(8)]],
    uint group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]
) {
  threadgroup float shared[row_team_max_simdgroups];
  const bool is_second = rope_has_second && group >= uint(args.groups_of_first);
  const RowTeam team = row_team(is_second ? group - uint(args.groups_of_first) : group, simdgroup, simdgroups, lane);
  constant RopeRowsArgs& source = is_second ? args.second : args.first;
  if (team.row >= source.rows.count) {
    return;
  }
  const int columns = source.rows.columns;
  RopeRow<T> row;
  row.x = first;
  row.out = first_out;
  if (rope_has_norm) {
    row.weight = first_weight;
  }
  if (rope_has_second) {
    row.x = is_second ? second : first;
    row.out = is_second ? second_out : first_out;
  }
  if (rope_has_second_norm) {
    row.weight = is_second ? second_weight : first_weight;
  }
  row.x += row_offset(team.row, source.rows, source.x);
  row.out += team.row * columns;
  row.x_stride = source.x.column_stride;
  row.weight_stride = source.weight_stride;
  row.weight_offset = args.weight_offset;
  if (rope_has_norm) {
    float squares = 0.0f;
    for (int column = team.index * 4; column < columns; column += team.size * 4) {
      const float4 v = row_load(row.x, row.x_stride, rope_vector_x, column, columns);
      squares += sum_of(v * v);
    }
    row.r = 1.0f / precise::sqrt(row_team_sum(squares, shared, team) / float(columns) + args.eps);
  }

  const float position = float(positions[row_offset(team.row, source.rows, source.positions)]);
  const int rotary_dim = args.rotary_dim;
  const int pair_quads = (rotary_dim / 2 + 3) / 4;
  const int quads = pair_quads + (columns - rotary_dim + 3) / 4;
  for (int quad = team.index; quad < quads; quad += team.size) {
    if (quad < pair_quads) {
      const int i = quad * 4;
      const float4 angle =
          position * load4(inv_freq + i * args.inv_freq_stride, args.inv_freq_stride, rotary_dim / 2 - i);
      row.rotate(precise::cos(angle), precise::sin(angle), i, rotary_dim);
    } else {
      const int column = rotary_dim + (quad - pair_quads) * 4;
      row.store(row.load(column, columns), column, columns);
    }
  }
}

// clang-format off
instantiate_kernel("rope_rows_float32", rope_rows, float)
instantiate_kernel("rope_rows_float16", rope_rows, half)
instantiate_kernel("rope_rows_bfloat16", rope_rows, bfloat)
