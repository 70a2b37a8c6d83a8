// argmax and sample: one index for each row of logits.
//
//   for each row, a threadgroup:
//     z = softcap tanh(logits / softcap) / temperature, each where asked for; NaN becomes minus infinity
//     least = the greatest t for which at least top_k of z >= t
//     least = the greatest t for which the z >= t, of those left, have at least top_p of their sum of exp(z - max z)
//     out = the first index of the greatest z + noise among z >= least; 0 where no z is above minus infinity
//
// With Gumbel noise the last line draws from softmax(z) restricted to z >= least (Gumbel 1954; Maddison et al., arXiv
// 1411.0030). A threshold is found by its bits, as an unsigned integer in the order of floats, four at a time from the
// top: eight passes over a row from cache, whatever its values, without sorting. Ties at a threshold all stay.

#include <metal_stdlib>

#include "kernels/args/sampling.h"
#include "kernels/common/instantiate.h"
#include "kernels/common/row_team.h"
#include "kernels/common/rows.h"

using namespace metal;

constant bool sampling_has_noise [[function_constant(1)]];
constant bool sampling_has_softcap [[function_constant(2)]];
constant bool sampling_has_temperature [[function_constant(3)]];
constant bool sampling_has_top_k [[function_constant(4)]];
constant bool sampling_has_top_p [[function_constant(5)]];
constant bool sampling_vector_logits [[function_constant(6)]];
constant bool sampling_vector_noise [[function_constant(7)]];

// Keeps the order of floats; 0 and -0 are one.
inline uint order_of(float x) {
  const uint bits = as_type<uint>(x + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

template <typename T>
struct LogitsRow {
  device const T* logits;
  device const float* noise;

  float4 scores(constant SamplingArgs& args, int column) const {
    float4 z = row_load(logits, args.logits.column_stride, sampling_vector_logits, column, args.rows.columns);
    if (sampling_has_softcap) {
      z = args.softcap * precise::tanh(clamp(z / args.softcap, float4(-15.0f), float4(15.0f)));
    }
    if (sampling_has_temperature) {
      z /= args.temperature;
    }
    for (int i = 0; i < 4; ++i) {
      z[i] = isnan(z[i]) ? -INFINITY : z[i];
    }
    return first_of(z, args.rows.columns - column, -INFINITY);
  }

  float greatest(constant SamplingArgs& args, threadgroup float* shared, thread const RowTeam& team) const {
    float most = -INFINITY;
    for (int column = team.index * 4; column < args.rows.columns; column += team.size * 4) {
      const float4 z = scores(args, column);
      most = fmax(most, fmax(fmax(z[0], z[1]), fmax(z[2], z[3])));
    }
    return row_team_max(most, shared, team);
  }

  // What an element counts towards the threshold of top_k, or of top_p.
  static float weight(float z, float most, bool by_mass) {
    return !by_mass || z == most ? 1.0f : precise::exp(z - most);
  }

  // The greatest order for which the elements from there on, of those from `least` on, weigh `target` or more.
  uint threshold(
      constant SamplingArgs& args,
      uint least,
      float most,
      bool by_mass,
      float target,
      threadgroup float* shared,
      thread const RowTeam& team
  ) const {
    uint found = 0;
    for (int shift = 28; shift >= 0; shift -= 4) {
      float mass[15] = {};
      for (int column = team.index * 4; column < args.rows.columns; column += team.size * 4) {
        const float4 z = scores(args, column);
        for (int i = 0; i < min(4, args.rows.columns - column); ++i) {
          const uint order = order_of(z[i]);
          const float w = order >= least ? weight(z[i], most, by_mass) : 0.0f;
          for (uint digit = 1; digit < 16; ++digit) {
            mass[digit - 1] += order >= (found | digit << uint(shift)) ? w : 0.0f;
          }
        }
      }
      uint chosen = 0;
      for (uint digit = 1; digit < 16; ++digit) {
        chosen = row_team_sum(mass[digit - 1], shared, team) >= target ? digit : chosen;
      }
      found |= chosen << uint(shift);
    }
    return found;
  }

  float total(
      constant SamplingArgs& args, uint least, float most, threadgroup float* shared, thread const RowTeam& team
  ) const {
    float sum = 0.0f;
    for (int column = team.index * 4; column < args.rows.columns; column += team.size * 4) {
      const float4 z = scores(args, column);
      for (int i = 0; i < min(4, args.rows.columns - column); ++i) {
        sum += order_of(z[i]) >= least ? weight(z[i], most, true) : 0.0f;
      }
    }
    return row_team_sum(sum, shared, team);
  }
};

template <typename T>
[[kernel, max_total_threads_per_threadgroup(1024)]] void sample_rows(
    device const T* logits [[buffer(0)]],
    device const float* noise [[buffer(1), function_constant(sampling_has_noise)]],
    device uint* out [[buffer(2)]],
    constant SamplingArgs& args [[buffer(3)]],
    uint group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]
) {
  threadgroup float shared[row_team_max_simdgroups];
  threadgroup uint shared_indices[row_team_max_simdgroups];
  const RowTeam team = row_team(group, simdgroup, simdgroups, lane);
  if (team.row >= args.rows.count) {
    return;
  }
  LogitsRow<T> row;
  row.logits = logits + row_offset(team.row, args.rows, args.logits);
  if (sampling_has_noise) {
    row.noise = noise + row_offset(team.row, args.rows, args.noise);
  }

  uint least = 0;
  if (sampling_has_top_k) {
    least = row.threshold(args, least, 0.0f, false, args.top_k, shared, team);
  }
  if (sampling_has_top_p) {
    const float most = row.greatest(args, shared, team);
    const float target = args.top_p * row.total(args, least, most, shared, team);
    least = max(least, row.threshold(args, least, most, true, target, shared, team));
  }

  float best = -INFINITY;
  uint index = 0xffffffffu;
  for (int column = team.index * 4; column < args.rows.columns; column += team.size * 4) {
    float4 z = row.scores(args, column);
    float4 value = z;
    if (sampling_has_noise) {
      value += row_load(row.noise, args.noise.column_stride, sampling_vector_noise, column, args.rows.columns);
    }
    for (int i = 0; i < 4; ++i) {
      if (value[i] > best && order_of(z[i]) >= least) {
        best = value[i];
        index = uint(column + i);
      }
    }
  }
  const float most = row_team_max(best, shared, team);
  index = row_team_min(best == most ? index : 0xffffffffu, shared_indices, team);
  if (team.index == 0) {
    out[team.row] = index == 0xffffffffu ? 0 : index;
  }
}

// clang-format off
instantiate_kernel("sample_rows_float32", sample_rows, float)
instantiate_kernel("sample_rows_float16", sample_rows, half)
instantiate_kernel("sample_rows_bfloat16", sample_rows, bfloat)
