#include "backends/cpu/causal_conv1d.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "backends/cpu/delta_kernels.h"
#include "backends/cpu/elements.h"
#include "backends/cpu/pieces.h"
#include "backends/cpu/scratch.h"
#include "backends/cpu/thread_pool.h"
#include "backends/cpu/vector_kernels.h"

// A task is a block of tokens of one row. Each source row is converted once and kept in a ring of K rows.

namespace tessl::cpu {
namespace {

constexpr int64_t min_task_elements = 32 * 1024;

thread_local Scratch scratch;

Range tokens_of(const CausalConv1d& p, int64_t batch) {
  const auto& r = p.range;
  const int64_t end = r.lengths ? std::clamp<int64_t>(r.lengths[batch * r.lengths_stride], 0, p.T) : p.T;
  const int64_t begin = r.starts ? std::clamp<int64_t>(r.starts[batch * r.starts_stride], 0, end) : 0;
  return {begin, end};
}

// Row `t` of the tokens, or of the state, which ends where the tokens begin.
void load_source(const CausalConv1d& p, int64_t batch, int64_t begin, int64_t t, float* target) {
  if (t >= begin) {
    const void* row = advance(p.x, p.element, batch * p.x_strides[0] + t * p.x_strides[1]);
    vector_kernels().load(p.element, target, row, p.x_strides[2], p.C);
  } else if (p.state == nullptr) {
    std::fill_n(target, p.C, 0.0f);
  } else {
    const int64_t index = p.K - 1 + t - begin;
    const void* row = advance(p.state, p.element, batch * p.state_strides[0] + index * p.state_strides[1]);
    vector_kernels().load(p.element, target, row, p.state_strides[2], p.C);
  }
}

void convolve_block(const CausalConv1d& p, int64_t batch, Range block, float* memory) {
  const Range tokens = tokens_of(p, batch);
  float* weights = memory; // [K, C]
  float* ring = weights + p.K * p.C;
  float* y = ring + p.K * p.C;
  for (int64_t j = 0; j < p.K; ++j) {
    const void* column = advance(p.weight, p.element, j * p.weight_strides[1]);
    vector_kernels().load(p.element, weights + j * p.C, column, p.weight_strides[0], p.C);
  }
  std::vector<const float*> rows(static_cast<size_t>(p.K));
  auto slot = [&](int64_t t) { return ring + (t + p.K) % p.K * p.C; };
  int64_t loaded = std::max(block.begin, tokens.begin) - (p.K - 1);
  for (int64_t t = block.begin; t < block.end; ++t) {
    void* target = advance(p.y, p.element, (batch * p.T + t) * p.C);
    if (t < tokens.begin || t >= tokens.end) {
      std::memset(target, 0, static_cast<size_t>(p.C * size_of(p.element)));
      continue;
    }
    for (; loaded <= t; ++loaded) {
      load_source(p, batch, tokens.begin, loaded, slot(loaded));
    }
    for (int64_t j = 0; j < p.K; ++j) {
      rows[static_cast<size_t>(j)] = slot(t - (p.K - 1) + j);
    }
    delta_kernels().convolve(y, rows.data(), weights, p.K, p.C, p.with_silu);
    vector_kernels().rows->store(p.element, target, y, p.C);
  }
}

void keep_last_rows(const CausalConv1d& p, int64_t batch, float* memory) {
  const Range tokens = tokens_of(p, batch);
  for (int64_t i = 0; i < p.K - 1; ++i) {
    load_source(p, batch, tokens.begin, tokens.end - (p.K - 1) + i, memory);
    void* target = advance(p.new_state, p.element, (batch * (p.K - 1) + i) * p.C);
    vector_kernels().rows->store(p.element, target, memory, p.C);
  }
}

} // namespace

void causal_conv1d(const CausalConv1d& p) {
  const int64_t block = std::max<int64_t>(1, min_task_elements / (p.C * p.K));
  // The last task of each row keeps its last rows.
  const int64_t blocks = ceil_div(p.T, block);
  ThreadPool::instance().parallel_for(p.B * std::max<int64_t>(blocks, 1), [&](int64_t task) {
    const int64_t batch = task / std::max<int64_t>(blocks, 1);
    const int64_t index = task % std::max<int64_t>(blocks, 1);
    float* memory = scratch.reserve((2 * p.K + 1) * p.C);
    if (index < blocks) {
      convolve_block(p, batch, {index * block, std::min((index + 1) * block, p.T)}, memory);
    }
    if (index + 1 >= blocks) {
      keep_last_rows(p, batch, memory);
    }
  });
}

} // namespace tessl::cpu
