#include "backends/cpu/sparse_max_pool.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <vector>

#include "backends/cpu/elements.h"
#include "backends/cpu/pieces.h"
#include "backends/cpu/scratch.h"
#include "backends/cpu/sparse_kernels.h"
#include "backends/cpu/thread_pool.h"
#include "backends/cpu/vector_kernels.h"

// A task has a few panels of words, whose weights it interleaves once and keeps in cache. It takes the tokens of a row
// a few at a time: their logits are sums in registers, and go from there into the pool. No logit is ever in memory, and
// none depends on other tokens.

namespace tessl::cpu {
namespace {

constexpr int64_t cached_weights = 64 * 1024; // floats of a task's panels: half of a 512 KiB cache
constexpr double min_task_cost = 2e6;         // floating-point operations; waking a thread costs about as much

thread_local Scratch weight_scratch;
thread_local Scratch row_of_weights;
thread_local Scratch bias_scratch;
thread_local Scratch pool_scratch;

// The tokens that count, as float32 with contiguous units.
struct Tokens {
  std::vector<const float*> rows; // the first token of each
  std::vector<int64_t> lengths;
  int64_t stride = 0;
  std::unique_ptr<float[]> converted;
  int64_t count = 0;
};

Tokens tokens_of(const SparseMaxPool& p) {
  Tokens tokens;
  std::vector<int64_t> starts;
  for (int64_t row = 0; row < p.rows; ++row) {
    const int64_t length = p.lengths ? p.lengths[row * p.length_stride] : p.tokens;
    starts.push_back(tokens.count);
    tokens.lengths.push_back(std::clamp<int64_t>(length, 0, p.tokens));
    tokens.count += tokens.lengths.back();
  }
  const auto [row_stride, token_stride, unit_stride] = p.hidden_strides;
  if (p.element == Element::float32 && (unit_stride == 1 || p.units == 1)) {
    tokens.stride = token_stride;
    for (int64_t row = 0; row < p.rows; ++row) {
      tokens.rows.push_back(static_cast<const float*>(p.hidden) + row * row_stride);
    }
    return tokens;
  }
  tokens.stride = p.units;
  tokens.converted = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(tokens.count * p.units));
  for (const int64_t start : starts) {
    tokens.rows.push_back(tokens.converted.get() + start * p.units);
  }
  ThreadPool::instance().parallel_for(p.rows, [&](int64_t row) {
    float* target = tokens.converted.get() + starts[row] * p.units;
    for (int64_t token = 0; token < tokens.lengths[row]; ++token, target += p.units) {
      const void* source = advance(p.hidden, p.element, row * row_stride + token * token_stride);
      vector_kernels().load(p.element, target, source, unit_stride, p.units);
    }
  });
  return tokens;
}

// Interleaves the weights of a panel's words; those past the last are zeros.
void interleave(const SparseMaxPool& p, Range words, int64_t panel_words, float* panel) {
  float* row = row_of_weights.reserve(p.units);
  for (int64_t i = 0; i < panel_words; ++i) {
    if (i < words.size()) {
      const void* source = advance(p.weight, p.element, (words.begin + i) * p.weight_strides[0]);
      vector_kernels().load(p.element, row, source, p.weight_strides[1], p.units);
    } else {
      std::fill_n(row, p.units, 0.0f);
    }
    for (int64_t unit = 0; unit < p.units; ++unit) {
      panel[unit * panel_words + i] = row[unit];
    }
  }
}

void compute(const SparseMaxPool& p, const Tokens& tokens, Range words) {
  const SparseKernels& kernels = sparse_kernels();
  const int64_t panel_words = kernels.panel_words;
  const int64_t panels = ceil_div(words.size(), panel_words);
  float* weights = weight_scratch.reserve(panels * panel_words * p.units);
  float* bias = bias_scratch.reserve(panels * panel_words);
  std::fill_n(bias, panels * panel_words, 0.0f);
  if (p.bias) {
    const void* source = advance(p.bias, p.element, words.begin * p.bias_stride);
    vector_kernels().load(p.element, bias, source, p.bias_stride, words.size());
  }
  int64_t panel = 0;
  for_each_piece(words, panel_words, [&](Range piece) {
    interleave(p, piece, panel_words, weights + panel++ * panel_words * p.units);
  });

  float* pooled = pool_scratch.reserve(panels * panel_words);
  for (int64_t row = 0; row < p.rows; ++row) {
    std::fill_n(pooled, panels * panel_words, p.sums ? 0.0f : -std::numeric_limits<float>::infinity());
    for_each_piece({0, tokens.lengths[row]}, max_pooled_tokens, [&](Range piece) {
      const float* first = tokens.rows[row] + piece.begin * tokens.stride;
      for (int64_t i = 0; i < panels; ++i) {
        const int64_t at = i * panel_words;
        kernels.pool_tokens(
            pooled + at,
            first,
            tokens.stride,
            piece.size(),
            weights + at * p.units,
            p.units,
            bias + at,
            p.activation,
            p.sums
        );
      }
    });
    if (tokens.lengths[row] == 0) {
      std::fill_n(pooled, panels * panel_words, 0.0f);
    } else if (!p.sums) {
      kernels.activate(pooled, pooled, bias, p.activation, panels * panel_words);
    }
    void* out = advance(p.out, p.element, row * p.words + words.begin);
    vector_kernels().rows->store(p.element, out, pooled, words.size());
  }
}

// Words of a task: as many as make it long enough, and no more than their weights stay in cache for.
int64_t words_of_task(const SparseMaxPool& p, int64_t tokens) {
  const int64_t panel_words = sparse_kernels().panel_words;
  const double panel_cost = 2.0 * static_cast<double>(panel_words) * static_cast<double>(p.units) *
                            static_cast<double>(std::max<int64_t>(tokens, 4)); // interleaving counts as some tokens
  const auto cached = std::max<int64_t>(1, cached_weights / (panel_words * p.units));
  const auto wanted = static_cast<int64_t>(min_task_cost / panel_cost) + 1;
  return panel_words * std::min(std::max<int64_t>(wanted, 4), std::max<int64_t>(cached, 4));
}

} // namespace

void sparse_max_pool(const SparseMaxPool& p) {
  if (p.rows == 0 || p.words == 0) {
    return;
  }
  const Tokens tokens = tokens_of(p);
  const int64_t words = words_of_task(p, tokens.count);
  ThreadPool::instance().parallel_for(ceil_div(p.words, words), [&](int64_t task) {
    compute(p, tokens, {task * words, std::min(p.words, (task + 1) * words)});
  });
}

} // namespace tessl::cpu
