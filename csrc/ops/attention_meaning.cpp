#include "ops/attention_meaning.h"

#include <limits>

#include <mlx/ops.h>

namespace tessl {
namespace {

// Arrays are [B, kv_heads, group, T, D] here: the query heads of a group share their keys.
class Composition {
 public:
  Composition(const AttentionInputs& inputs, const AttentionParameters& parameters, mx::Stream stream)
      : inputs_(inputs), parameters_(parameters), s_(stream) {
  }

  mx::array result() const {
    const auto& q = inputs_.q;
    const auto k = with_prefix(inputs_.prefix_k, inputs_.k);
    const auto v = with_prefix(inputs_.prefix_v, inputs_.v);
    const int keys = k.shape(2);
    const mx::Shape shape = inputs_.output_shape();
    if (keys == 0 || std::find(shape.begin(), shape.end(), 0) != shape.end()) {
      return mx::zeros(shape, q.dtype(), s_);
    }
    const int kv_heads = k.shape(1);
    const auto bias = additive_mask();
    const auto visible =
        mx::broadcast_to(visible_keys(keys, bias), {q.shape(0), kv_heads, q.shape(1) / kv_heads, q.shape(2), keys}, s_);
    // What no query sees must not matter, even if it is NaN, for which no weight is small enough.
    const auto seen = mx::expand_dims(mx::any(visible, std::vector<int>{2, 3}, false, s_), {2, 4}, s_);
    const auto key = mx::where(seen, mx::expand_dims(float32(k), 2, s_), zero(), s_);
    const auto value = mx::where(seen, mx::expand_dims(float32(v), 2, s_), zero(), s_);
    const auto query = mx::unflatten(float32(q), 1, {kv_heads, -1}, s_);
    const auto weights = softmax(scores(query, key, bias), visible, kv_heads);
    return mx::astype(mx::flatten(mx::matmul(weights, value, s_), 1, 2, s_), q.dtype(), s_);
  }

 private:
  mx::array zero() const {
    return mx::array(0.0f);
  }

  mx::array float32(const mx::array& x) const {
    return mx::astype(x, mx::float32, s_);
  }

  mx::array with_prefix(const std::optional<mx::array>& prefix, const mx::array& own) const {
    if (!prefix) {
      return own;
    }
    mx::Shape shape = prefix->shape();
    shape.insert(shape.begin(), own.shape(0));
    return mx::concatenate({mx::broadcast_to(*prefix, shape, s_), own}, 2, s_);
  }

  // The mask with its heads in groups.
  mx::array grouped_mask() const {
    auto mask = *inputs_.mask;
    for (int i = static_cast<int>(mask.ndim()); i < 4; ++i) {
      mask = mx::expand_dims(mask, 0, s_);
    }
    return mx::unflatten(mask, 1, mask.shape(1) == 1 ? mx::Shape{1, 1} : mx::Shape{inputs_.k.shape(1), -1}, s_);
  }

  std::optional<mx::array> additive_mask() const {
    if (parameters_.mask_kind != AttentionMask::additive) {
      return std::nullopt;
    }
    return float32(grouped_mask());
  }

  mx::array is_finite_bias(const mx::array& bias) const {
    return mx::not_equal(bias, mx::array(-std::numeric_limits<float>::infinity()), s_);
  }

  mx::array visible_keys(int keys, const std::optional<mx::array>& bias) const {
    const int Tk = inputs_.k.shape(2);
    const int Tq = inputs_.q.shape(2);
    const auto key = mx::arange(Tk - keys, Tk, s_);
    const auto query = mx::expand_dims(mx::arange(Tk - Tq, Tk, s_), 1, s_);
    auto visible = mx::array(true);
    auto require = [&](const mx::array& rule) { visible = mx::logical_and(visible, rule, s_); };
    const auto ahead = mx::subtract(key, query, s_);
    if (parameters_.causal) {
      require(mx::less_equal(ahead, mx::array(0), s_));
    }
    if (parameters_.window_left >= 0) {
      require(mx::greater_equal(ahead, mx::array(-parameters_.window_left), s_));
    }
    if (parameters_.window_right >= 0) {
      require(mx::less_equal(ahead, mx::array(parameters_.window_right), s_));
    }
    const auto shared = mx::less(key, mx::array(0), s_);
    auto row = [&](const mx::array& x) { return mx::expand_dims(x, {1, 2, 3, 4}, s_); };
    if (inputs_.lengths) {
      require(mx::logical_or(shared, mx::less(key, row(*inputs_.lengths), s_), s_));
    }
    if (inputs_.starts) {
      require(mx::logical_or(shared, mx::greater_equal(key, row(*inputs_.starts), s_), s_));
    }
    if (bias) {
      require(is_finite_bias(*bias));
    } else if (parameters_.mask_kind == AttentionMask::boolean) {
      require(grouped_mask());
    }
    return visible;
  }

  mx::array scores(const mx::array& query, const mx::array& key, const std::optional<mx::array>& bias) const {
    const auto products = mx::matmul(query, mx::swapaxes(key, -1, -2, s_), s_);
    auto scores = mx::multiply(products, mx::array(parameters_.scale), s_);
    if (parameters_.softcap != 0.0f) {
      const auto cap = mx::array(parameters_.softcap);
      scores = mx::multiply(mx::tanh(mx::divide(scores, cap, s_), s_), cap, s_);
    }
    if (bias) {
      scores = mx::add(scores, mx::where(is_finite_bias(*bias), *bias, zero(), s_), s_);
    }
    return scores;
  }

  mx::array softmax(const mx::array& all_scores, const mx::array& visible, int kv_heads) const {
    const auto scores = mx::where(visible, all_scores, mx::array(std::numeric_limits<float>::lowest()), s_);
    auto most = mx::max(scores, -1, true, s_);
    std::optional<mx::array> sink;
    if (inputs_.sinks) {
      sink = mx::expand_dims(mx::unflatten(*inputs_.sinks, 0, {kv_heads, -1}, s_), {2, 3}, s_);
      most = mx::maximum(most, *sink, s_);
    }
    most = mx::stop_gradient(most, s_);
    const auto weights = mx::where(visible, mx::exp(mx::subtract(scores, most, s_), s_), zero(), s_);
    auto total = mx::sum(weights, -1, true, s_);
    if (sink) {
      total = mx::add(total, mx::exp(mx::subtract(*sink, most, s_), s_), s_);
    }
    const auto divisor = mx::where(mx::greater(total, zero(), s_), total, mx::array(1.0f), s_);
    return mx::divide(weights, divisor, s_);
  }

  const AttentionInputs& inputs_;
  const AttentionParameters& parameters_;
  mx::Stream s_;
};

} // namespace

mx::array composed_attention(const AttentionInputs& inputs, const AttentionParameters& parameters, mx::Stream stream) {
  return Composition(inputs, parameters, stream).result();
}

} // namespace tessl
