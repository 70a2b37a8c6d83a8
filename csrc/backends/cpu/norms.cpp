#include "backends/cpu/norms.h"

namespace tessl::cpu {
namespace {

void norm_rows(const Norm& norm, int64_t first, int64_t last) {
  const Element element = norm.x.element;
  const int64_t N = norm.rows.columns;
  float* scratch = row_scratch(7 * N);
  auto reserve = [&, next = 0]() mutable { return scratch + N * next++; };
  auto read = [&](const RowsInput& input, int64_t row, float* target) {
    return input ? input.read(norm.rows, row, 0, N, target) : nullptr;
  };
  float* x = reserve();
  float* residual = reserve();
  float* gate = reserve();
  float* sum = reserve();
  float* out = reserve();
  const RowsOutput outputs{norm.out, element};
  const RowsOutput sums{norm.sum, element};
  NormRow work{
      .weight = norm.weight ? norm.weight.read({norm.rows.columns, {}}, 0, 0, N, reserve()) : nullptr,
      .bias = norm.bias ? norm.bias.read({norm.rows.columns, {}}, 0, 0, N, reserve()) : nullptr,
      .centered = norm.centered,
      .eps = norm.eps,
      .weight_offset = norm.weight_offset,
      .count = N,
  };
  for (int64_t row = first; row < last; ++row) {
    work.x = read(norm.x, row, x);
    work.residual = read(norm.residual, row, residual);
    work.gate = read(norm.gate, row, gate);
    work.out = outputs.target(row * N, out);
    work.sum = norm.residual ? sums.target(row * N, sum) : nullptr;
    vector_kernels().rows->norm(work);
    outputs.finish(row * N, work.out, N);
    if (norm.residual) {
      sums.finish(row * N, work.sum, N);
    }
  }
}

} // namespace

void norm(const Norm& norm) {
  for_ranges(norm.rows.count(), norm.rows.columns, [&](int64_t first, int64_t last) { norm_rows(norm, first, last); });
}

} // namespace tessl::cpu
