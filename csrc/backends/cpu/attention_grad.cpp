#include "backends/cpu/attention_grad.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "backends/cpu/attention_rows.h"
#include "backends/cpu/thread_pool.h"
#include "backends/cpu/vector_kernels.h"

// For every tile of keys and panel of rows, with W the weights of the softmax, which ended with `most` and `sum`, and
// m = sum(out dout) of each row:
//   W = 2^(S - most) / sum    Z = W (dout v^T - m) scale    dv += W^T dout    dk += Z^T q    dq += Z k
// (Dao et al. 2022, arXiv:2205.14135, algorithm 4.) Sums over keys and over rows are in their order wherever the tasks
// are cut, so that neither the number of threads nor the rest of the batch shows in a result.

namespace tessl::cpu {
namespace {

constexpr int64_t block_rows = 96; // whose weights are in cache together

struct GradScratch {
  Scratch queries, douts, row, state, keys, values, padded_keys, gathered, weights, slopes, biases, dq, dk, dv;
  std::vector<Range> visible;
};
thread_local GradScratch scratch;

int64_t panel_width() {
  return attention_kernels().columns;
}

int64_t sums_stride(int64_t columns) {
  return round_up(std::max<int64_t>(columns, 1), panel_width());
}

// Rows of one head of keys with their cotangents, as float32, and the weights and slopes of their scores, tile by tile.
class GradRows {
 public:
  GradRows(const AttentionGrad& problem, int64_t batch, int64_t kv_head, Range rows)
      : p_(problem),
        f_(problem.forward),
        head_(problem.forward, batch, kv_head),
        rows_(rows),
        query_stride_(padded_stride(f_.D)),
        dout_stride_(padded_stride(f_.Dv)) {
    const int64_t padded = round_up(rows.size(), attention_kernels().rows);
    queries_ = scratch.queries.reserve(padded * query_stride_);
    douts_ = scratch.douts.reserve(padded * dout_stride_);
    most_ = scratch.state.reserve(3 * rows.size());
    inverses_ = most_ + rows.size();
    means_ = inverses_ + rows.size();
    weights_ = scratch.weights.reserve(block_rows * tile_keys);
    slopes_ = scratch.slopes.reserve(block_rows * tile_keys);
    biases_ = f_.mask ? scratch.biases.reserve(attention_kernels().rows * tile_keys) : nullptr;
    visible_.resize(static_cast<size_t>(rows.size()));
    std::fill_n(queries_, padded * query_stride_, 0.0f);
    std::fill_n(douts_, padded * dout_stride_, 0.0f);
    for (int64_t r = 0; r < rows.size(); ++r) {
      load_row(r);
    }
  }

  const KeyHead& head() const {
    return head_;
  }
  Range seen() const {
    return {visible_.front().begin, visible_.back().end};
  }
  Range visible(int64_t r) const {
    return visible_[static_cast<size_t>(r)];
  }
  float mean(int64_t r) const {
    return means_[r];
  }
  // The weight of a score.
  float weight(int64_t r, float score) const {
    return std::exp2(score - most_[r]) * inverses_[r];
  }
  const float* query(int64_t r) const {
    return queries_ + r * query_stride_;
  }
  const float* dout(int64_t r) const {
    return douts_ + r * dout_stride_;
  }
  int64_t query_stride() const {
    return query_stride_;
  }
  int64_t dout_stride() const {
    return dout_stride_;
  }

  // Of row r of the block, columns of the tile.
  const float* weights(int64_t r) const {
    return weights_ + r * tile_keys;
  }
  const float* slopes(int64_t r) const {
    return slopes_ + r * tile_keys;
  }

  void load_tile(Range tile) {
    tile_ = tile;
    keys_ = packed(head_.key_rows(tile, scratch.gathered), f_.D, scratch.keys);
    values_ = packed(head_.value_rows(tile, scratch.gathered), f_.Dv, scratch.values);
  }

  // The weights and slopes of a block of rows for the tile, and zeros where a key is not seen; calls
  // f(first row, columns) for each panel in which one is. By the scores as they are before the mask is added, and by
  // the products before the cap unless `by_bias`.
  template <typename Function>
  void compute(Range block, float factor, bool by_bias, Function f) {
    std::fill_n(weights_, block_rows * tile_keys, 0.0f);
    std::fill_n(slopes_, block_rows * tile_keys, 0.0f);
    const int64_t step = attention_kernels().rows;
    for (int64_t first = block.begin; first < block.end; first += step) {
      const int64_t count = std::min(step, block.end - first);
      const Range seen = intersection({visible(first).begin, visible(first + count - 1).end}, tile_);
      const Range columns{seen.begin - tile_.begin, seen.end - tile_.begin};
      if (columns.size() == 0 || !load_biases(first, count, columns)) {
        continue;
      }
      const Range computed{round_down(columns.begin, panel_width()), round_up(columns.end, panel_width())};
      const int64_t r = first - block.begin;
      multiply_rows(weights_ + r * tile_keys, queries_ + first * query_stride_, query_stride_, keys_, f_.D, computed);
      multiply_rows(slopes_ + r * tile_keys, douts_ + first * dout_stride_, dout_stride_, values_, f_.Dv, computed);
      for (int64_t i = 0; i < count; ++i) {
        soften(first + i, r + i, i, computed, factor, by_bias);
      }
      f(first, columns);
    }
  }

 private:
  void load_row(int64_t r) {
    const int64_t row = rows_.begin + r;
    const int64_t head = head_.head_of(row);
    const int64_t i = head_.query_of(row);
    auto load = [&](const HeadsView& view, float* target, int64_t columns) {
      const void* source = row_of(view, f_.element, head_.batch, head, i);
      vector_kernels().load(f_.element, target, source, view.strides[3], columns);
    };
    visible_[static_cast<size_t>(r)] = head_.visible_from(row);
    const auto* ends = static_cast<const float*>(row_of(p_.ends, Element::float32, head_.batch, head, i));
    const float sum = ends[p_.ends.strides[3]];
    means_[r] = 0.0f;
    // What a query is that sees nothing must not matter.
    if (sum == 0.0f || visible(r).size() == 0) {
      most_[r] = std::numeric_limits<float>::infinity();
      inverses_[r] = 0.0f;
      return;
    }
    most_[r] = ends[0];
    inverses_[r] = 1.0f / sum;
    float* dout = douts_ + r * dout_stride_;
    float* out = scratch.row.reserve(std::max<int64_t>(f_.Dv, 1));
    load(f_.q, queries_ + r * query_stride_, f_.D);
    load(p_.dout, dout, f_.Dv);
    load(p_.out, out, f_.Dv);
    vector_kernels().dot_rows(Element::float32, means_ + r, 1, dout, f_.Dv, out, f_.Dv, 1, 1, f_.Dv);
  }

  const float* packed(const KeyRows& rows, int64_t columns, Scratch& target) const {
    float* panels = target.reserve(std::max<int64_t>(tile_keys * columns, 1));
    pack_keys(panels, float_rows(rows, tile_.size(), columns, scratch.gathered), tile_.size(), columns);
    return panels;
  }

  bool load_biases(int64_t first, int64_t count, Range columns) {
    bool any = biases_ == nullptr;
    for (int64_t i = 0; biases_ != nullptr && i < count; ++i) {
      const Range numbers{tile_.begin + columns.begin, tile_.begin + columns.end};
      any |= head_.load_bias(rows_.begin + first + i, numbers, biases_ + i * tile_keys + columns.begin);
    }
    return any;
  }

  static void multiply_rows(
      float* c, const float* a, int64_t stride, const float* panels, int64_t depth, Range computed
  ) {
    PanelProduct product;
    product.c = c + computed.begin;
    product.c_stride = tile_keys;
    product.a = a;
    product.a_row_stride = stride;
    product.a_depth_stride = 1;
    product.b = panels + computed.begin * depth;
    product.b_depth_stride = panel_width();
    product.b_panel_stride = panel_width() * depth;
    product.panels = computed.size() / panel_width();
    product.depth = depth;
    attention_kernels().multiply(product);
  }

  void soften(int64_t row, int64_t r, int64_t in_panel, Range computed, float factor, bool by_bias) {
    const Range seen{visible(row).begin - tile_.begin, visible(row).end - tile_.begin};
    const float* bias = biases_ == nullptr ? nullptr : biases_ + in_panel * tile_keys;
    auto scores = score_row(f_, weights_ + r * tile_keys, computed, seen, bias);
    scores.scale = f_.softcap > 0.0f ? f_.scale / f_.softcap : f_.scale * log2_of_e;
    attention_kernels().soften_gradient(
        scores, most_[row], inverses_[row], means_[row], factor, by_bias, slopes_ + r * tile_keys
    );
  }

  const AttentionGrad& p_;
  const Attention& f_;
  const KeyHead head_;
  const Range rows_;
  const int64_t query_stride_;
  const int64_t dout_stride_;
  std::vector<Range>& visible_ = scratch.visible;
  float* queries_ = nullptr;
  float* douts_ = nullptr;
  float* most_ = nullptr;     // greatest scores
  float* inverses_ = nullptr; // of the sums of 2^(score - most)
  float* means_ = nullptr;
  float* weights_ = nullptr;
  float* slopes_ = nullptr;
  float* biases_ = nullptr;
  const float* keys_ = nullptr;
  const float* values_ = nullptr;
  Range tile_;
};

// Gradients of rows and keys of one head.
class HeadGradient {
 public:
  HeadGradient(const AttentionGrad& problem, int64_t batch, int64_t kv_head, Range rows)
      : p_(problem),
        f_(problem.forward),
        rows_(problem, batch, kv_head, rows),
        row_count_(rows.size()),
        first_row_(rows.begin) {
  }

  // Goes over the tiles of `keys`; `shared` is where the gradients of the prefix go, or null: [P, D] and [P, Dv].
  void run(Range keys, bool wants_q, bool wants_keys, float* shared_k, float* shared_v) {
    wants_q_ = wants_q;
    wants_keys_ = wants_keys;
    const int64_t padded = round_up(row_count_, attention_kernels().rows);
    dq_stride_ = sums_stride(f_.D);
    if (wants_q_) {
      dq_ = scratch.dq.reserve(padded * dq_stride_);
      std::fill_n(dq_, padded * dq_stride_, 0.0f);
    }
    const Range whole = intersection(keys, {0, rows_.head().keys.count()});
    for_each_piece(whole, tile_keys, [&](Range tile) {
      visit(tile);
      if (wants_keys_) {
        store_keys(tile, dk_, sums_stride(f_.D), f_.D, p_.dk, shared_k);
        store_keys(tile, dv_, sums_stride(f_.Dv), f_.Dv, p_.dv, shared_v);
      }
    });
    if (wants_q_) {
      store_queries();
    }
  }

  void add_sinks(double* sums) const {
    const auto& head = rows_.head();
    for (int64_t r = 0; r < row_count_; ++r) {
      const int64_t h = head.head_of(first_row_ + r);
      const float weight = rows_.weight(r, f_.sinks[h * f_.sinks_stride] * log2_of_e);
      sums[h] -= static_cast<double>(weight) * rows_.mean(r);
    }
  }

 private:
  void visit(Range tile) {
    if (wants_keys_) {
      dk_ = scratch.dk.reserve(tile_keys * sums_stride(f_.D));
      dv_ = scratch.dv.reserve(tile_keys * sums_stride(f_.Dv));
      std::fill_n(dk_, tile_keys * sums_stride(f_.D), 0.0f);
      std::fill_n(dv_, tile_keys * sums_stride(f_.Dv), 0.0f);
    }
    if (intersection(rows_.seen(), tile).size() == 0) {
      return;
    }
    rows_.load_tile(tile);
    if (wants_q_) {
      padded_keys_ = scratch.padded_keys.reserve(tile_keys * padded_stride(f_.D));
      const auto keys = rows_.head().key_rows(tile, scratch.gathered);
      keys_are_finite_ = pad_rows(padded_keys_, keys, tile.size(), f_.D);
    }
    for_each_piece({0, row_count_}, block_rows, [&](Range block) {
      const Range seen{rows_.visible(block.begin).begin, rows_.visible(block.end - 1).end};
      if (intersection(seen, tile).size() == 0) {
        return;
      }
      rows_.compute(block, f_.scale, false, [&](int64_t first, Range columns) {
        if (wants_q_) {
          add_to_queries(first, first - block.begin, columns);
        }
      });
      if (wants_keys_) {
        add_to_keys(tile, block);
      }
    });
  }

  void add_to_queries(int64_t first, int64_t r, Range columns) {
    PanelProduct product;
    product.c = dq_ + first * dq_stride_;
    product.c_stride = dq_stride_;
    product.a = rows_.slopes(r) + columns.begin;
    product.a_row_stride = tile_keys;
    product.a_depth_stride = 1;
    product.b_depth_stride = padded_stride(f_.D);
    product.b = padded_keys_ + columns.begin * product.b_depth_stride;
    product.b_panel_stride = panel_width();
    product.panels = dq_stride_ / panel_width();
    product.depth = columns.size();
    product.accumulate = true;
    if (keys_are_finite_) {
      attention_kernels().multiply(product);
    } else {
      attention_kernels().multiply_nonzero(product);
    }
  }

  // For a few keys at a time, over the rows of the block that may see them.
  void add_to_keys(Range tile, Range block) {
    Range seeing = block;
    for_each_piece(tile, attention_kernels().rows, [&](Range keys) {
      while (seeing.begin < block.end && rows_.visible(seeing.begin).end <= keys.begin) {
        ++seeing.begin;
      }
      Range rows = seeing;
      while (rows.end > rows.begin && rows_.visible(rows.end - 1).begin >= keys.end) {
        --rows.end;
      }
      if (rows.size() == 0) {
        return;
      }
      const int64_t k = keys.begin - tile.begin;
      const int64_t r = rows.begin - block.begin;
      add_transposed(dv_, k, rows_.weights(r), rows_.dout(rows.begin), rows_.dout_stride(), rows.size(), f_.Dv);
      add_transposed(dk_, k, rows_.slopes(r), rows_.query(rows.begin), rows_.query_stride(), rows.size(), f_.D);
    });
  }

  static void add_transposed(
      float* sums, int64_t key, const float* a, const float* b, int64_t b_stride, int64_t depth, int64_t columns
  ) {
    PanelProduct product;
    product.c_stride = sums_stride(columns);
    product.c = sums + key * product.c_stride;
    product.a = a + key;
    product.a_row_stride = 1;
    product.a_depth_stride = tile_keys;
    product.b = b;
    product.b_depth_stride = b_stride;
    product.b_panel_stride = panel_width();
    product.panels = product.c_stride / panel_width();
    product.depth = depth;
    product.accumulate = true;
    attention_kernels().multiply(product);
  }

  void store_keys(Range tile, const float* sums, int64_t stride, int64_t columns, void* own, float* shared) const {
    const auto& head = rows_.head();
    const int64_t rows = (head.batch * f_.kv_heads + head.kv_head) * f_.Tk;
    for (int64_t n = tile.begin; n < tile.end; ++n) {
      const float* row = sums + (n - tile.begin) * stride;
      if (n >= head.keys.P) {
        if (own != nullptr) {
          const int64_t index = rows + head.keys.start + n - head.keys.P;
          vector_kernels().rows->store(f_.element, advance(own, f_.element, index * columns), row, columns);
        }
      } else if (shared != nullptr) {
        std::copy_n(row, columns, shared + n * columns);
      }
    }
  }

  void store_queries() const {
    const auto& head = rows_.head();
    for (int64_t r = 0; r < row_count_; ++r) {
      const int64_t row = first_row_ + r;
      const int64_t index = (head.batch * f_.heads + head.head_of(row)) * f_.Tq + head.query_of(row);
      void* target = advance(p_.dq, f_.element, index * f_.D);
      vector_kernels().rows->store(f_.element, target, dq_ + r * dq_stride_, f_.D);
    }
  }

  const AttentionGrad& p_;
  const Attention& f_;
  GradRows rows_;
  const int64_t row_count_;
  const int64_t first_row_;
  bool wants_q_ = false;
  bool wants_keys_ = false;
  bool keys_are_finite_ = true;
  int64_t dq_stride_ = 0;
  float* dq_ = nullptr;
  float* dk_ = nullptr; // of the tile
  float* dv_ = nullptr;
  float* padded_keys_ = nullptr;
};

// Gradients of the prefix, of each row of the batch, summed over them in order at the end.
class SharedSums {
 public:
  SharedSums(const Attention& f, int64_t columns, bool wanted) : f_(f), columns_(columns) {
    if (wanted) {
      sums_.resize(static_cast<size_t>(f.B * size()));
    }
  }

  float* of(int64_t batch, int64_t kv_head) {
    return sums_.empty() ? nullptr : sums_.data() + batch * size() + kv_head * f_.P * columns_;
  }

  void store(void* target) {
    if (target == nullptr) {
      return;
    }
    std::vector<float> total(static_cast<size_t>(size()));
    for (int64_t b = 0; b < f_.B && size() > 0; ++b) {
      vector_kernels().rows->add(total.data(), sums_.data() + b * size(), size());
    }
    vector_kernels().rows->store(f_.element, target, total.data(), size());
  }

 private:
  int64_t size() const {
    return f_.kv_heads * f_.P * columns_;
  }

  const Attention& f_;
  int64_t columns_;
  std::vector<float> sums_;
};

void clear(void* target, const Attention& f, int64_t count) {
  if (target != nullptr) {
    std::memset(target, 0, static_cast<size_t>(count * size_of(f.element)));
  }
}

int64_t rows_of(const Attention& f) {
  return f.Tq * (f.heads / f.kv_heads);
}

// Heads that are too few to occupy the threads are cut twice: by rows for dq, by keys for the others.
constexpr int64_t cut_rows = 4 * block_rows;
constexpr int64_t cut_keys = 4 * tile_keys;

void gradients_of_operands(const AttentionGrad& p) {
  const auto& f = p.forward;
  const int64_t rows = rows_of(f);
  const int64_t keys = f.P + f.Tk;
  const int64_t heads = f.B * f.kv_heads;
  const bool wants_keys = p.dk != nullptr || p.dprefix_k != nullptr;
  SharedSums shared_k(f, f.D, p.dprefix_k != nullptr);
  SharedSums shared_v(f, f.Dv, p.dprefix_v != nullptr);
  auto run = [&](int64_t head, Range head_rows, Range head_keys, bool of_rows, bool of_keys) {
    const int64_t batch = head / f.kv_heads;
    const int64_t kv_head = head % f.kv_heads;
    HeadGradient gradient(p, batch, kv_head, head_rows);
    gradient.run(head_keys, of_rows, of_keys, shared_k.of(batch, kv_head), shared_v.of(batch, kv_head));
  };
  auto& pool = ThreadPool::instance();
  if (heads >= pool.size() || rows * keys <= cut_rows * cut_keys) {
    pool.parallel_for(heads, [&](int64_t i) { run(i, {0, rows}, {0, keys}, p.dq != nullptr, wants_keys); });
  } else {
    const int64_t row_cuts = p.dq != nullptr ? ceil_div(rows, cut_rows) : 0;
    const int64_t key_cuts = wants_keys ? ceil_div(keys, cut_keys) : 0;
    const int64_t cuts = row_cuts + key_cuts;
    pool.parallel_for(heads * cuts, [&](int64_t i) {
      const int64_t cut = i % cuts;
      if (cut < row_cuts) {
        run(i / cuts, intersection({cut * cut_rows, (cut + 1) * cut_rows}, {0, rows}), {0, keys}, true, false);
      } else {
        const int64_t first = (cut - row_cuts) * cut_keys;
        run(i / cuts, {0, rows}, {first, first + cut_keys}, false, true);
      }
    });
  }
  shared_k.store(p.dprefix_k);
  shared_v.store(p.dprefix_v);
}

void gradient_of_sinks(const AttentionGrad& p) {
  const auto& f = p.forward;
  std::vector<double> sums(static_cast<size_t>(f.B * f.heads));
  ThreadPool::instance().parallel_for(f.B * f.kv_heads, [&](int64_t i) {
    const int64_t batch = i / f.kv_heads;
    HeadGradient(p, batch, i % f.kv_heads, {0, rows_of(f)}).add_sinks(sums.data() + batch * f.heads);
  });
  for (int64_t h = 0; h < f.heads; ++h) {
    double sum = 0.0;
    for (int64_t b = 0; b < f.B; ++b) {
      sum += sums[static_cast<size_t>(b * f.heads + h)];
    }
    p.dsinks[h] = static_cast<float>(sum);
  }
}

// The slopes of the scores, summed to the mask's own shape: a task owns the part of the mask that it adds to.
class MaskGradient {
 public:
  explicit MaskGradient(const AttentionGrad& p) : p_(p), f_(p.forward) {
    int64_t size = 1;
    for (int d = 3; d >= 0; --d) {
      strides_[d] = p.mask_shape[d] == 1 ? 0 : size;
      size *= p.mask_shape[d];
    }
    sums_.resize(static_cast<size_t>(size));
  }

  // Without a query it is zeros.
  void run() {
    if (f_.B * rows_of(f_) > 0) {
      add_all();
    }
    vector_kernels().rows->store(f_.element, p_.dmask, sums_.data(), static_cast<int64_t>(sums_.size()));
  }

 private:
  void add_all() {
    const int64_t batches = strides_[0] == 0 ? 1 : f_.B;
    const int64_t heads = strides_[1] == 0 ? 1 : f_.kv_heads;
    const int64_t rows = rows_of(f_);
    const int64_t cuts = strides_[2] == 0 ? 1 : ceil_div(rows, cut_rows());
    ThreadPool::instance().parallel_for(batches * heads * cuts, [&](int64_t i) {
      const int64_t cut = i % cuts;
      const Range part =
          strides_[2] == 0 ? Range{0, rows} : intersection({cut * cut_rows(), (cut + 1) * cut_rows()}, {0, rows});
      for (int64_t b = 0; b < (strides_[0] == 0 ? f_.B : 1); ++b) {
        for (int64_t h = 0; h < (strides_[1] == 0 ? f_.kv_heads : 1); ++h) {
          add(i / cuts / heads + b, i / cuts % heads + h, part);
        }
      }
    });
  }

  // Whole queries, whatever the group: tasks must not share one.
  int64_t cut_rows() const {
    return block_rows * (f_.heads / f_.kv_heads);
  }

  void add(int64_t batch, int64_t kv_head, Range part) {
    GradRows rows(p_, batch, kv_head, part);
    for_each_piece({0, rows.head().keys.count()}, tile_keys, [&](Range tile) {
      if (intersection(rows.seen(), tile).size() == 0) {
        return;
      }
      rows.load_tile(tile);
      for_each_piece({0, part.size()}, block_rows, [&](Range block) {
        rows.compute(block, 1.0f, true, [](int64_t, Range) {});
        for (int64_t r = block.begin; r < block.end; ++r) {
          add_row(rows.head(), part.begin + r, tile, rows.slopes(r - block.begin));
        }
      });
    });
  }

  void add_row(const KeyHead& head, int64_t row, Range tile, const float* slopes) {
    float* sums =
        sums_.data() + head.batch * strides_[0] + head.head_of(row) * strides_[1] + head.query_of(row) * strides_[2];
    for (int64_t n = tile.begin; n < tile.end; ++n) {
      const int64_t column = n < head.keys.P ? n : n + head.keys.start;
      sums[column * strides_[3]] += slopes[n - tile.begin];
    }
  }

  const AttentionGrad& p_;
  const Attention& f_;
  std::array<int64_t, 4> strides_{};
  std::vector<float> sums_;
};

} // namespace

void attention_grad(const AttentionGrad& p) {
  const auto& f = p.forward;
  clear(p.dq, f, f.B * f.heads * f.Tq * f.D);
  clear(p.dk, f, f.B * f.kv_heads * f.Tk * f.D); // those of hidden keys stay
  clear(p.dv, f, f.B * f.kv_heads * f.Tk * f.Dv);
  const bool empty = f.B * f.heads * f.Tq == 0;
  if (empty) {
    clear(p.dprefix_k, f, f.kv_heads * f.P * f.D);
    clear(p.dprefix_v, f, f.kv_heads * f.P * f.Dv);
    if (p.dsinks != nullptr) {
      std::fill_n(p.dsinks, f.heads, 0.0f);
    }
  }
  if (!empty && (p.dq != nullptr || p.dk != nullptr || p.dprefix_k != nullptr)) {
    gradients_of_operands(p);
  }
  if (!empty && p.dsinks != nullptr) {
    gradient_of_sinks(p);
  }
  if (p.dmask != nullptr) {
    MaskGradient(p).run();
  }
}

} // namespace tessl::cpu
