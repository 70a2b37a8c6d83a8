#include "backends/cpu/rope.h"

#include <algorithm>

namespace tessl::cpu {
namespace {

void rope_rows(const Rope& rope, int64_t first, int64_t last) {
  const RowKernels& kernels = *vector_kernels().rows;
  const int64_t N = rope.rows.columns;
  const int64_t half = rope.rotary_dim / 2;
  float* scratch = row_scratch(3 * N + 3 * half);
  float* x_scratch = scratch;
  float* out_scratch = scratch + N;
  float* cosines = scratch + 3 * N;
  float* sines = cosines + half;
  const float* inv_freq = rope.inv_freq.read({static_cast<int32_t>(half), {}}, 0, 0, half, sines + half);
  const RowsOutput outputs{rope.out, rope.x.element};
  NormRow norm{.eps = rope.eps, .weight_offset = rope.weight_offset, .count = N};
  norm.weight = rope.weight ? rope.weight.read({rope.rows.columns, {}}, 0, 0, N, scratch + 2 * N) : nullptr;

  bool have_angles = false;
  int32_t angles_of = 0;
  for (int64_t row = first; row < last; ++row) {
    const int32_t position = rope.positions_data[rope.positions.offset_of(row, rope.rows.shape)];
    if (!have_angles || position != angles_of) {
      kernels.cos_sin(cosines, sines, static_cast<float>(position), inv_freq, half);
      have_angles = true;
      angles_of = position;
    }
    const float* x = rope.x.read(rope.rows, row, 0, N, x_scratch);
    float* out = outputs.target(row * N, out_scratch);
    if (rope.weight) {
      norm.x = x;
      norm.out = out;
      kernels.norm(norm);
      x = out;
    } else {
      std::copy(x + rope.rotary_dim, x + N, out + rope.rotary_dim);
    }
    kernels.rotate(out, x, cosines, sines, half, rope.interleaved);
    outputs.finish(row * N, out, N);
  }
}

} // namespace

void rope(const Rope& rope) {
  for_ranges(rope.rows.count(), rope.rows.columns, [&](int64_t first, int64_t last) { rope_rows(rope, first, last); });
}

} // namespace tessl::cpu
