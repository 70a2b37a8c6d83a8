#pragma once

#include <algorithm>
#include <cstdint>

#include "backends/cpu/attention.h"
#include "backends/cpu/attention_kernels.h"
#include "backends/cpu/elements.h"
#include "backends/cpu/pieces.h"
#include "backends/cpu/scratch.h"

// How the CPU code of attention counts. The query heads that share a head of keys are a group: query i of the g-th of
// them is row i * group + g of that head. Keys are numbered, those of the prefix first and then a row's own from its
// start to its length: tiles are cut by number, so that neither padding nor where the prefix is kept shows in the bits
// of a result.

namespace tessl::cpu {

constexpr int64_t tile_keys = 96;
constexpr float log2_of_e = 0x1.715476p+0f;

inline int64_t round_down(int64_t x, int64_t multiple) {
  return x / multiple * multiple;
}

inline int64_t round_up(int64_t x, int64_t multiple) {
  return ceil_div(x, multiple) * multiple;
}

inline Range intersection(Range x, Range y) {
  const int64_t begin = std::max(x.begin, y.begin);
  return {begin, std::max(begin, std::min(x.end, y.end))};
}

// The keys of one row of the batch.
struct NumberedKeys {
  int64_t P = 0;
  int64_t start = 0; // position of the first own key
  int64_t own = 0;

  NumberedKeys(const Attention& p, int64_t batch);

  int64_t count() const {
    return P + own;
  }

  // How many stand before `position`.
  int64_t before(int64_t position) const {
    if (position <= 0) {
      return std::clamp<int64_t>(P + position, 0, P);
    }
    return P + std::clamp<int64_t>(position - start, 0, own);
  }

  // Those that the query at `position` sees, but for a mask; both ends grow with the position.
  Range visible_from(const Attention& p, int64_t position) const {
    const int64_t first = p.window_left >= 0 ? before(position - p.window_left) : 0;
    int64_t last = count();
    if (p.causal) {
      last = std::min(last, before(position + 1));
    }
    if (p.window_right >= 0) {
      last = std::min(last, before(position + p.window_right + 1));
    }
    return {first, std::max(first, last)};
  }
};

// Rows of keys or values: element (n, column) is at data[n * stride + column].
struct KeyRows {
  Element element = Element::float32;
  const void* data = nullptr;
  int64_t stride = 0;
};

// Rows of float32.
struct FloatRows {
  const float* data = nullptr;
  int64_t stride = 0;
};

inline const void* row_of(const HeadsView& view, Element element, int64_t batch, int64_t head, int64_t row) {
  const auto& [batch_stride, head_stride, row_stride, column_stride] = view.strides;
  return advance(view.data, element, batch * batch_stride + head * head_stride + row * row_stride);
}

// One head of a batch row, and where its keys or values are.
struct KeyHead {
  const Attention& p;
  int64_t batch;
  int64_t kv_head;
  NumberedKeys keys;

  KeyHead(const Attention& problem, int64_t batch_row, int64_t head)
      : p(problem), batch(batch_row), kv_head(head), keys(problem, batch_row) {
  }

  int64_t group() const {
    return p.heads / p.kv_heads;
  }
  int64_t rows() const {
    return p.Tq * group();
  }
  int64_t query_of(int64_t row) const {
    return row / group();
  }
  int64_t head_of(int64_t row) const {
    return kv_head * group() + row % group();
  }
  Range visible_from(int64_t row) const {
    return keys.visible_from(p, query_of(row) + p.Tk - p.Tq);
  }

  // In place where all stand in one array with contiguous columns, else gathered into `scratch` as float32.
  KeyRows rows_of(
      const HeadsView& prefix, const HeadsView& own, Range numbers, int64_t columns, Scratch& scratch
  ) const;
  KeyRows key_rows(Range numbers, Scratch& scratch) const {
    return rows_of(p.prefix_k, p.k, numbers, p.D, scratch);
  }
  KeyRows value_rows(Range numbers, Scratch& scratch) const {
    return rows_of(p.prefix_v, p.v, numbers, p.Dv, scratch);
  }

  // What the mask adds to the scores of `row` for the keys `numbers`, in units of log 2, -infinity where it hides;
  // false when it hides them all.
  bool load_bias(int64_t row, Range numbers, float* bias) const;
};

// The same rows as float32.
FloatRows float_rows(const KeyRows& rows, int64_t count, int64_t columns, Scratch& scratch);

// Between rows that a product takes as its b: whole panels, and rows that do not fall on the same lines of a cache.
inline int64_t padded_stride(int64_t columns) {
  return round_up(std::max<int64_t>(columns, 1), attention_kernels().columns) + 16;
}

// Copies `count` rows into rows padded with zeros; false when one holds an infinity or NaN.
bool pad_rows(float* target, const KeyRows& rows, int64_t count, int64_t columns);

// Transposes `count` rows into panels of as many keys as a product has columns, from `first` (a multiple) on.
void pack_keys(float* panels, const FloatRows& rows, int64_t count, int64_t columns);

// A row's scores of a tile as attention_kernels() take them: `columns` are computed, `visible` are seen.
ScoreRow score_row(const Attention& p, float* scores, Range columns, Range visible, const float* bias);

} // namespace tessl::cpu
