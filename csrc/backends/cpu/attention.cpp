#include "backends/cpu/attention.h"

#include <cmath>
#include <limits>
#include <vector>

#include "backends/cpu/attention_rows.h"
#include "backends/cpu/thread_pool.h"
#include "backends/cpu/vector_kernels.h"

// A task is a block of the rows of one head of keys. It goes over the tiles of keys that its rows see, and in a tile
// over panels of a few rows, whose scores stay in L1 from the first product through the softmax to the second:
//   S = q k^T    P = 2^(S - most)    out = out 2^(most before - most) + P v    (Dao et al. 2022, arXiv:2205.14135)
// Keys are taken in parts, which are put together in their order; for few rows parts are tasks, too. What a row does
// not see changes no bit of it: its weight is an exact 0. So neither the cut into tasks nor the rest of the batch shows
// in a result.

namespace tessl::cpu {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

// Keys are packed again for each block of rows.
constexpr int64_t most_block_rows = 384;
constexpr int64_t least_block_rows = 48;
constexpr int64_t wanted_blocks = 32; // of all heads together

// For one query of up to so many heads, keys are streamed from where they are instead of packed.
constexpr int64_t most_streaming_rows = 8;

constexpr int64_t part_keys = 8 * tile_keys;
constexpr int64_t most_split_rows = 48; // up to which parts are tasks

// Floating-point operations of a task below which waking a thread for it does not pay, and of one exponential.
constexpr double min_task_cost = 2e6;
constexpr double cost_of_exp = 32;

struct BlockScratch {
  Scratch queries, keys, values, gathered, scores, biases, sums, product, state, states;
  std::vector<Range> visible;
};
thread_local BlockScratch scratch;

struct Block {
  int64_t batch = 0;
  int64_t kv_head = 0;
  Range rows;
  Range keys; // by number
};

// Numbers of floats that the online softmax of one row is.
int64_t state_size(const Attention& p) {
  return p.Dv + 2;
}

class BlockAttention {
 public:
  BlockAttention(const Attention& p, const Block& block)
      : p_(p),
        head_(p, block.batch, block.kv_head),
        rows_(block.rows),
        keys_(block.keys),
        streams_(p.Tq == 1 && head_.rows() <= most_streaming_rows),
        panel_rows_(streams_ ? int64_t{max_thin_rows} : attention_kernels().rows),
        query_stride_(std::max<int64_t>(p.D, 1)),
        sums_stride_(round_up(p.Dv, attention_kernels().columns)) {
    reserve();
    load_queries();
    start();
  }

  void run() {
    const Range seen = intersection({visible_.front().begin, visible_.back().end}, keys_);
    if (seen.size() == 0) {
      return;
    }
    const int64_t first = round_down(seen.begin, part_keys);
    for (int64_t begin = first; begin < seen.end; begin += part_keys) {
      if (begin == first) {
        run_part(intersection(seen, {begin, begin + part_keys}));
      } else {
        run_later_part(intersection(seen, {begin, begin + part_keys}));
      }
    }
  }

  // Rounds the rows into the output.
  void finish() const {
    for (int64_t r = 0; r < rows_.size(); ++r) {
      finish_row(r, most_[r], sum_[r], sums_ + r * sums_stride_);
    }
  }

  // The state of the rows, one after another: greatest score, sum of weights, weighted values.
  void save(float* state) const {
    for (int64_t r = 0; r < rows_.size(); ++r, state += state_size(p_)) {
      state[0] = most_[r];
      state[1] = sum_[r];
      std::copy_n(sums_ + r * sums_stride_, p_.Dv, state + 2);
    }
  }

  // Goes on as if it had seen what the block that saved `state` saw.
  void join(const float* state) {
    for (int64_t r = 0; r < rows_.size(); ++r, state += state_size(p_)) {
      const float most = std::max(most_[r], state[0]);
      if (most == -infinity) {
        continue;
      }
      const float before = std::exp2(most_[r] - most);
      const float factor = std::exp2(state[0] - most);
      float* sums = sums_ + r * sums_stride_;
      for (int64_t d = 0; d < p_.Dv; ++d) {
        sums[d] = sums[d] * before + state[2 + d] * factor;
      }
      sum_[r] = sum_[r] * before + state[1] * factor;
      most_[r] = most;
    }
  }

 private:
  struct Panel {
    int64_t first; // row of the block
    int64_t count;
    Range tile;
    Range seen;    // columns of the tile
    Range columns; // those that are computed
  };

  void run_part(Range keys) {
    for (int64_t begin = round_down(keys.begin, tile_keys); begin < keys.end; begin += tile_keys) {
      visit(intersection({begin, begin + tile_keys}, {0, head_.keys.count()}));
    }
  }

  void run_later_part(Range keys) {
    const int64_t size = rows_.size() * state_size(p_);
    float* earlier = scratch.states.reserve(2 * size);
    save(earlier);
    start();
    run_part(keys);
    save(earlier + size);
    start();
    join(earlier);
    join(earlier + size);
  }

  void reserve() {
    const auto& kernels = attention_kernels();
    const int64_t padded_rows = round_up(rows_.size(), kernels.rows);
    queries_ = scratch.queries.reserve(padded_rows * query_stride_);
    scores_ = scratch.scores.reserve(kernels.rows * tile_keys);
    biases_ = p_.mask ? scratch.biases.reserve(kernels.rows * tile_keys) : nullptr;
    sums_ = scratch.sums.reserve(std::max<int64_t>(padded_rows * sums_stride_, 1));
    product_ = scratch.product.reserve(std::max<int64_t>(kernels.rows * sums_stride_, 1));
    most_ = scratch.state.reserve(2 * rows_.size());
    sum_ = most_ + rows_.size();
    std::fill_n(queries_, padded_rows * query_stride_, 0.0f);
    std::fill_n(scores_, kernels.rows * tile_keys, 0.0f);
    visible_.resize(static_cast<size_t>(rows_.size()));
  }

  const void* query_row(int64_t r) const {
    const int64_t row = rows_.begin + r;
    return row_of(p_.q, p_.element, head_.batch, head_.head_of(row), head_.query_of(row));
  }

  // With their scale, which makes products scores in units of log 2, or what softcap takes the tanh of.
  void load_queries() {
    const float scale = p_.softcap > 0.0f ? p_.scale / p_.softcap : p_.scale * log2_of_e;
    for (int64_t r = 0; r < std::min(head_.group(), rows_.size()); ++r) {
      load_queries_of_head(r, scale);
    }
    for (int64_t r = 0; r < rows_.size(); ++r) {
      visible_[static_cast<size_t>(r)] = head_.visible_from(rows_.begin + r);
    }
  }

  // Those of the head of row `first`, and each a token after the other.
  void load_queries_of_head(int64_t first, float scale) {
    RowsCopy copy;
    copy.target = queries_ + first * query_stride_;
    copy.target_stride = head_.group() * query_stride_;
    copy.element = p_.element;
    copy.source = query_row(first);
    copy.source_stride = p_.q.strides[2];
    copy.count = ceil_div(rows_.size() - first, head_.group());
    copy.width = copy.columns = p_.D;
    copy.factor = scale;
    if (p_.q.strides[3] == 1 || p_.D == 1) {
      attention_kernels().copy_rows(copy);
      return;
    }
    for (int64_t i = 0; i < copy.count; ++i) {
      float* query = copy.target + i * copy.target_stride;
      const void* source = advance(copy.source, p_.element, i * copy.source_stride);
      vector_kernels().load(p_.element, query, source, p_.q.strides[3], p_.D);
      vector_kernels().rows->scale(query, scale, query, p_.D);
    }
  }

  void start() {
    std::fill_n(sums_, round_up(rows_.size(), attention_kernels().rows) * sums_stride_, 0.0f);
    for (int64_t r = 0; r < rows_.size(); ++r) {
      most_[r] = p_.sinks == nullptr ? -infinity : sink_of(r);
      sum_[r] = 0.0f;
    }
  }

  float sink_of(int64_t r) const {
    return p_.sinks[head_.head_of(rows_.begin + r) * p_.sinks_stride] * log2_of_e;
  }

  void visit(Range tile) {
    has_keys_ = has_values_ = false;
    for (int64_t first = 0; first < rows_.size(); first += panel_rows_) {
      const int64_t count = std::min(panel_rows_, rows_.size() - first);
      const Range visible{
          visible_[static_cast<size_t>(first)].begin, visible_[static_cast<size_t>(first + count - 1)].end
      };
      const Range seen = intersection(visible, tile);
      if (seen.size() > 0) {
        const Range columns{seen.begin - tile.begin, seen.end - tile.begin};
        const int64_t width = attention_kernels().columns;
        attend({first, count, tile, columns, {round_down(columns.begin, width), round_up(columns.end, width)}});
      }
    }
  }

  void attend(const Panel& panel) {
    if (!load_biases(panel)) {
      return;
    }
    score(panel);
    for (int64_t i = 0; i < panel.count; ++i) {
      const int64_t r = panel.first + i;
      const Range visible = visible_[static_cast<size_t>(r)];
      const auto row = score_row(
          p_,
          scores_ + i * tile_keys,
          panel.columns,
          {visible.begin - panel.tile.begin, visible.end - panel.tile.begin},
          biases_ == nullptr ? nullptr : biases_ + i * tile_keys
      );
      const float factor = attention_kernels().soften(row, most_[r], sum_[r]);
      if (factor != 1.0f) {
        float* sums = sums_ + r * sums_stride_;
        vector_kernels().rows->scale(sums, factor, sums, p_.Dv);
      }
    }
    weigh(panel);
  }

  bool load_biases(const Panel& panel) {
    if (biases_ == nullptr) {
      return true;
    }
    const Range numbers{panel.tile.begin + panel.seen.begin, panel.tile.begin + panel.seen.end};
    bool any = false;
    for (int64_t i = 0; i < panel.count; ++i) {
      const int64_t row = rows_.begin + panel.first + i;
      any |= head_.load_bias(row, numbers, biases_ + i * tile_keys + panel.seen.begin);
    }
    return any;
  }

  void score(const Panel& panel) {
    if (streams_) {
      if (!has_keys_) {
        key_rows_ = head_.key_rows(panel.tile, scratch.keys);
        has_keys_ = true;
      }
      const auto& [element, data, stride] = key_rows_;
      vector_kernels().dot_rows(
          element,
          scores_ + panel.seen.begin,
          tile_keys,
          queries_ + panel.first * query_stride_,
          query_stride_,
          advance(data, element, panel.seen.begin * stride),
          stride,
          panel.count,
          panel.seen.size(),
          p_.D
      );
      return;
    }
    if (!has_keys_) {
      const auto rows = head_.key_rows(panel.tile, scratch.gathered);
      keys_packed_ = scratch.keys.reserve(std::max<int64_t>(tile_keys * p_.D, 1));
      pack_keys(keys_packed_, float_rows(rows, panel.tile.size(), p_.D, scratch.gathered), panel.tile.size(), p_.D);
      has_keys_ = true;
    }
    PanelProduct product;
    const int64_t width = attention_kernels().columns;
    product.c = scores_ + panel.columns.begin;
    product.c_stride = tile_keys;
    product.a = queries_ + panel.first * query_stride_;
    product.a_row_stride = query_stride_;
    product.a_depth_stride = 1;
    product.b = keys_packed_ + panel.columns.begin * p_.D;
    product.b_depth_stride = width;
    product.b_panel_stride = width * p_.D;
    product.panels = panel.columns.size() / width;
    product.depth = p_.D;
    attention_kernels().multiply(product);
  }

  // Weights times values, the values padded.
  PanelProduct weighted_values(const Panel& panel, float* target) {
    if (!has_values_) {
      values_ = scratch.values.reserve(tile_keys * padded_stride(p_.Dv));
      const auto rows = head_.value_rows(panel.tile, scratch.gathered);
      values_are_finite_ = pad_rows(values_, rows, panel.tile.size(), p_.Dv);
      has_values_ = true;
    }
    PanelProduct product;
    product.c = target;
    product.c_stride = sums_stride_;
    product.a = scores_ + panel.seen.begin;
    product.a_row_stride = tile_keys;
    product.a_depth_stride = 1;
    product.b_depth_stride = padded_stride(p_.Dv);
    product.b = values_ + panel.seen.begin * product.b_depth_stride;
    product.b_panel_stride = attention_kernels().columns;
    product.panels = sums_stride_ / attention_kernels().columns;
    product.depth = panel.seen.size();
    product.accumulate = true;
    return product;
  }

  void weigh(const Panel& panel) {
    float* sums = sums_ + panel.first * sums_stride_;
    if (streams_) {
      weigh_streaming(panel, sums);
      return;
    }
    const auto product = weighted_values(panel, sums);
    if (values_are_finite_) {
      attention_kernels().multiply(product);
    } else {
      attention_kernels().multiply_nonzero(product);
    }
  }

  // A sum that is not finite may be 0 times a hidden infinity, and is made again.
  void weigh_streaming(const Panel& panel, float* sums) {
    const auto [element, data, stride] = head_.value_rows(panel.tile, scratch.gathered);
    vector_kernels().combine_rows(
        element,
        product_,
        sums_stride_,
        scores_ + panel.seen.begin,
        tile_keys,
        advance(data, element, panel.seen.begin * stride),
        stride,
        panel.count,
        p_.Dv,
        panel.seen.size()
    );
    bool finite = true;
    for (int64_t i = 0; i < panel.count; ++i) {
      finite = finite && attention_kernels().all_finite(product_ + i * sums_stride_, p_.Dv);
    }
    if (!finite) {
      std::fill_n(product_, attention_kernels().rows * sums_stride_, 0.0f);
      std::fill_n(scores_ + panel.count * tile_keys, (attention_kernels().rows - panel.count) * tile_keys, 0.0f);
      attention_kernels().multiply_nonzero(weighted_values(panel, product_));
    }
    for (int64_t i = 0; i < panel.count; ++i) {
      vector_kernels().rows->add(sums + i * sums_stride_, product_ + i * sums_stride_, p_.Dv);
    }
  }

  void finish_row(int64_t r, float most, float sum, const float* sums) const {
    const int64_t row = rows_.begin + r;
    const int64_t index = (head_.batch * p_.heads + head_.head_of(row)) * p_.Tq + head_.query_of(row);
    const bool seen = sum != 0.0f;
    const float total = p_.sinks == nullptr ? sum : sum + std::exp2(sink_of(r) - most);
    EpilogueRow divide;
    divide.alpha = seen ? 1.0f / total : 0.0f;
    vector_kernels().finish(p_.element, advance(p_.out, p_.element, index * p_.Dv), sums, divide, p_.Dv);
    if (p_.ends != nullptr) {
      p_.ends[2 * index] = seen ? most : 0.0f;
      p_.ends[2 * index + 1] = seen ? total : 0.0f;
    }
  }

  const Attention& p_;
  const KeyHead head_;
  const Range rows_;
  const Range keys_;
  const bool streams_;
  const int64_t panel_rows_;
  const int64_t query_stride_;
  const int64_t sums_stride_;
  std::vector<Range>& visible_ = scratch.visible;
  float* queries_ = nullptr;
  float* scores_ = nullptr;  // [panel rows, tile_keys]
  float* biases_ = nullptr;  // alike; null without a mask
  float* sums_ = nullptr;    // [rows, sums_stride_], weighted values
  float* product_ = nullptr; // of a panel of rows alike
  float* most_ = nullptr;
  float* sum_ = nullptr;
  KeyRows key_rows_;
  float* keys_packed_ = nullptr;
  float* values_ = nullptr;
  bool has_keys_ = false;
  bool has_values_ = false;
  bool values_are_finite_ = true;
};

// Calls f(i) for every i below `count` on the threads of the pool, several at a time where one costs little.
template <typename Function>
void for_each_task(int64_t count, double cost, Function f) {
  const auto group = static_cast<int64_t>(std::clamp(min_task_cost / cost, 1.0, static_cast<double>(count)));
  ThreadPool::instance().parallel_for(ceil_div(count, group), [&](int64_t index) {
    for (int64_t i = index * group; i < std::min((index + 1) * group, count); ++i) {
      f(i);
    }
  });
}

double cost_of(const Attention& p, int64_t rows, int64_t keys) {
  return static_cast<double>(rows * keys) * (2.0 * static_cast<double>(p.D + p.Dv) + cost_of_exp) + 1;
}

void attend_by_rows(const Attention& p, int64_t rows) {
  const int64_t heads = p.B * p.kv_heads;
  const int64_t even = round_up(ceil_div(rows * heads, wanted_blocks), least_block_rows);
  const int64_t block_rows = std::min(rows, std::clamp(even, least_block_rows, most_block_rows));
  const int64_t blocks = ceil_div(rows, block_rows);
  for_each_task(heads * blocks, cost_of(p, block_rows, p.P + p.Tk), [&](int64_t i) {
    // The last rows see the most keys where attention is causal: they begin.
    const int64_t first = (blocks - 1 - i / heads) * block_rows;
    const int64_t head = i % heads;
    BlockAttention block(
        p, {head / p.kv_heads, head % p.kv_heads, {first, std::min(first + block_rows, rows)}, {0, p.P + p.Tk}}
    );
    block.run();
    block.finish();
  });
}

void attend_by_keys(const Attention& p, int64_t rows, int64_t parts) {
  const int64_t heads = p.B * p.kv_heads;
  const int64_t part_size = rows * state_size(p);
  std::vector<float> states(static_cast<size_t>(heads * parts * part_size));
  auto block_of = [&](int64_t head, Range keys) {
    return BlockAttention(p, {head / p.kv_heads, head % p.kv_heads, {0, rows}, keys});
  };
  for_each_task(heads * parts, cost_of(p, rows, part_keys), [&](int64_t i) {
    const int64_t first = i % parts * part_keys;
    auto block = block_of(i / parts, {first, first + part_keys});
    block.run();
    block.save(states.data() + i * part_size);
  });
  for_each_task(heads, cost_of(p, rows, parts), [&](int64_t head) {
    auto block = block_of(head, {0, 0});
    for (int64_t part = 0; part < parts; ++part) {
      block.join(states.data() + (head * parts + part) * part_size);
    }
    block.finish();
  });
}

} // namespace

void attention(const Attention& p) {
  const int64_t rows = p.Tq * (p.heads / p.kv_heads);
  if (p.B * p.kv_heads * rows == 0) {
    return;
  }
  const int64_t parts = ceil_div(p.P + p.Tk, part_keys);
  if (rows <= most_split_rows && parts > 1) {
    attend_by_keys(p, rows, parts);
  } else {
    attend_by_rows(p, rows);
  }
}

} // namespace tessl::cpu
