#include "backends/cpu/attention.h"

#include <algorithm>
#include <cstring>

#include "backends/cpu/blas.h"
#include "backends/cpu/scratch.h"
#include "backends/cpu/thread_pool.h"
#include "backends/cpu/vector_kernels.h"

// A task is a block of query rows of one head. Its scores against all visible keys stay in cache from the first product
// through the softmax to the second:
//   S = q k^T    P = exp(scale S - max)    out = P v / sum(P)
// A row's result depends on its own length only, never on the rest of the batch.

namespace tessl::cpu {
namespace {

constexpr int64_t max_scores = 64 * 1024; // of one block, 256 KiB
constexpr int64_t least_rows = 16;
constexpr int64_t most_rows = 128;

// Floating-point operations of a task below which waking a thread for it does not pay, and of one exponential.
constexpr double min_task_cost = 2e6;
constexpr double cost_of_exp = 32;

thread_local Scratch query_scratch;
thread_local Scratch key_scratch;
thread_local Scratch value_scratch;
thread_local Scratch score_scratch;
thread_local Scratch sum_scratch;
thread_local Scratch output_scratch;

struct Block {
  int64_t batch, head, first, rows, keys;
};

int64_t ceil_div(int64_t x, int64_t y) {
  return (x + y - 1) / y;
}

int64_t size_of(Element element) {
  return element == Element::float32 ? 4 : 2;
}

// The matrix [rows, columns] of one head from row `first` on, as BLAS takes it: in place when it is float32 with
// contiguous rows, else converted into `scratch`.
BlasOperand matrix(
    const HeadsView& view,
    Element element,
    int64_t batch,
    int64_t head,
    int64_t first,
    int64_t rows,
    int64_t columns,
    Scratch& scratch
) {
  const auto [batch_stride, head_stride, row_stride, column_stride] = view.strides;
  const int64_t offset = batch * batch_stride + head * head_stride + first * row_stride;
  const char* source = static_cast<const char*>(view.data) + offset * size_of(element);
  const bool contiguous_rows = column_stride == 1 && row_stride >= columns && row_stride <= max_blas_dimension;
  if (element == Element::float32 && contiguous_rows) {
    return {reinterpret_cast<const float*>(source), row_stride, false};
  }
  float* converted = scratch.reserve(rows * columns);
  for (int64_t i = 0; i < rows; ++i) {
    const char* row = source + i * row_stride * size_of(element);
    vector_kernels().load(element, converted + i * columns, row, column_stride, columns);
  }
  return {converted, std::max<int64_t>(columns, 1), false};
}

BlasOperand transposed(BlasOperand x) {
  x.transposed = !x.transposed;
  return x;
}

void compute(const Attention& p, const Block& block) {
  const auto& [batch, head, first, rows, keys] = block;
  char* out = static_cast<char*>(p.out) + ((batch * p.heads + head) * p.Tq + first) * p.Dv * size_of(p.element);
  if (keys == 0) {
    std::memset(out, 0, static_cast<size_t>(rows * p.Dv * size_of(p.element)));
    return;
  }
  const int64_t kv_head = head / (p.heads / p.kv_heads);
  const auto query = matrix(p.q, p.element, batch, head, first, rows, p.D, query_scratch);
  const auto key = matrix(p.k, p.element, batch, kv_head, 0, keys, p.D, key_scratch);
  const auto value = matrix(p.v, p.element, batch, kv_head, 0, keys, p.Dv, value_scratch);

  float* scores = score_scratch.reserve(rows * keys);
  float* sums = sum_scratch.reserve(rows);
  sgemm(rows, keys, p.D, query, transposed(key), scores, keys, false);
  for (int64_t i = 0; i < rows; ++i) {
    sums[i] = vector_kernels().exponentials(scores + i * keys, p.scale, keys);
  }

  const bool in_place = p.element == Element::float32;
  float* weighted = in_place ? reinterpret_cast<float*>(out) : output_scratch.reserve(rows * p.Dv);
  sgemm(rows, p.Dv, keys, {scores, keys, false}, value, weighted, p.Dv, false);
  for (int64_t i = 0; i < rows; ++i) {
    EpilogueRow divide;
    divide.alpha = 1.0f / sums[i];
    char* row = out + i * p.Dv * size_of(p.element);
    vector_kernels().finish(p.element, row, weighted + i * p.Dv, divide, p.Dv);
  }
}

int64_t keys_of(const Attention& p, int64_t batch) {
  if (p.lengths == nullptr) {
    return p.Tk;
  }
  return std::clamp<int64_t>(p.lengths[batch * p.lengths_stride], 0, p.Tk);
}

} // namespace

void attention(const Attention& p) {
  if (p.B * p.heads * p.Tq * p.Dv == 0) {
    return;
  }
  const int64_t block_rows = std::clamp(max_scores / std::max<int64_t>(p.Tk, 1), least_rows, most_rows);
  const int64_t blocks = ceil_div(p.Tq, block_rows);
  const int64_t tasks = p.B * p.heads * blocks;
  const auto scores = static_cast<double>(std::min(block_rows, p.Tq) * p.Tk);
  const double task_cost = scores * (2.0 * static_cast<double>(p.D + p.Dv) + cost_of_exp) + 1;
  const auto group = static_cast<int64_t>(std::clamp(min_task_cost / task_cost, 1.0, static_cast<double>(tasks)));
  ThreadPool::instance().parallel_for(ceil_div(tasks, group), [&](int64_t index) {
    for (int64_t i = index * group; i < std::min((index + 1) * group, tasks); ++i) {
      const int64_t batch = i / (p.heads * blocks);
      const int64_t first = i % blocks * block_rows;
      compute(p, {batch, i / blocks % p.heads, first, std::min(block_rows, p.Tq - first), keys_of(p, batch)});
    }
  });
}

} // namespace tessl::cpu
