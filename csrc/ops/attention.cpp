#include "ops/attention.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include <mlx/ops.h>
#include <mlx/transforms.h>

#include "backends/cpu/attention.h"
#include "ops/attention_fold.h"
#include "ops/attention_grad.h"
#include "ops/attention_inputs.h"
#include "ops/attention_meaning.h"
#include "ops/attention_plan.h"
#include "ops/checks.h"
#include "ops/op.h"
#include "ops/precision.h"
#include "ops/varying.h"

namespace tessl {
namespace {

constexpr std::string_view op_name = "mlx_tessl.attention";

// The result, and where the softmax of every query ended, from which its gradients are made.
class Attention : public Op {
 public:
  Attention(mx::Stream stream, const AttentionParameters& parameters) : Op(stream), parameters_(parameters) {
  }

  Arrays make_vjp(
      const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums, const Arrays& outputs
  ) override {
    const auto inputs = AttentionInputs::from(primals, parameters_);
    const auto wants = wanted(argnums);
    const auto places = gradient_places(parameters_, wants);
    Arrays gradients;
    if (wants != AttentionWants{}) {
      gradients = attention_grad(inputs, parameters_, wants, outputs[0], outputs[1], cotangents[0], stream());
    }
    Arrays result;
    for (int i : argnums) {
      result.push_back(places[i] < 0 ? mx::zeros_like(primals[i], stream()) : gradients[places[i]]);
    }
    return result;
  }

  Arrays make_jvp(const Arrays& primals, const Arrays& tangents, const std::vector<int>& argnums) override {
    auto result = mx::jvp(varying(meaning(), primals, argnums), chosen(primals, argnums), tangents).second;
    result.push_back(mx::zeros(AttentionInputs::from(primals, parameters_).ends_shape(), mx::float32, stream()));
    return result;
  }

  std::pair<Arrays, std::vector<int>> make_vmap(const Arrays& inputs, const std::vector<int>& axes) override {
    if (const auto folded = fold_into_batch(inputs, axes, parameters_, stream())) {
      return {unfold_batch(build(folded->inputs), folded->members, stream()), {0, 0}};
    }
    auto mapped = mx::vmap(meaning(), axes)(inputs);
    auto shape = mapped[0].shape();
    shape.back() = 2;
    mapped.push_back(mx::zeros(shape, mx::float32, stream()));
    return {mapped, {0, 0}};
  }

  std::vector<mx::Shape> output_shapes(const Arrays& arrays) override {
    const auto inputs = AttentionInputs::from(arrays, parameters_);
    return {inputs.output_shape(), inputs.ends_shape()};
  }

  const char* name() const override {
    return op_name.data();
  }

  Arrays build(const Arrays& inputs) {
    auto primitive = std::make_shared<Attention>(stream(), parameters_);
    return mx::array::make_arrays(output_shapes(inputs), {inputs[0].dtype(), mx::float32}, primitive, inputs);
  }

 protected:
  Plan plan(const Arrays& inputs, const Arrays&, const DeviceProfile& device) const override {
    const auto attention = problem(inputs);
    return attention.Dv == 0 ? Plan{} : plan_attention(attention, device); // nobody reads the ends of no values
  }

  std::function<void()> compute(const Arrays& inputs, Arrays& outputs) const override {
    auto work = make_cpu_attention(problem(inputs), inputs);
    work.out = outputs[0].data<void>();
    work.ends = outputs[1].data<float>();
    return [work] { cpu::attention(work); };
  }

  bool same_parameters(const Op& other) const override {
    return parameters_ == static_cast<const Attention&>(other).parameters_;
  }

  bool vjp_reads_outputs() const override {
    return true;
  }

 private:
  AttentionProblem problem(const Arrays& inputs) const {
    return make_attention_problem(AttentionInputs::from(inputs, parameters_), parameters_);
  }

  std::function<Arrays(const Arrays&)> meaning() {
    return [parameters = parameters_, s = stream()](const Arrays& inputs) {
      return Arrays{composed_attention(AttentionInputs::from(inputs, parameters), parameters, s)};
    };
  }

  AttentionWants wanted(const std::vector<int>& argnums) const {
    auto asked = [&](bool present, int& next) {
      const bool found = present && std::find(argnums.begin(), argnums.end(), next) != argnums.end();
      next += present;
      return found;
    };
    int next = 0;
    AttentionWants wants;
    wants.q = asked(true, next);
    const bool k = asked(true, next);
    wants.keys = asked(true, next) || k;
    const bool prefix_k = asked(parameters_.prefix, next);
    wants.prefix = asked(parameters_.prefix, next) || prefix_k;
    const bool mask = asked(parameters_.mask_kind != AttentionMask::none, next);
    wants.mask = mask && parameters_.mask_kind == AttentionMask::additive;
    asked(parameters_.starts, next);
    asked(parameters_.lengths, next);
    wants.sinks = asked(parameters_.sinks, next);
    return wants;
  }

  AttentionParameters parameters_;
};

template <typename... Parts>
[[noreturn]] void refuse_attention(const Parts&... parts) {
  refuse(op_name, parts...);
}

void check_shapes(const mx::array& q, const mx::array& k, const mx::array& v) {
  for (const auto& [name, x] : {std::pair("q", &q), {"k", &k}, {"v", &v}}) {
    if (x->ndim() != 4) {
      refuse_attention(name, " has shape ", x->shape(), "; it must have 4 dimensions, [B, H, T, D]");
    }
  }
  if (k.shape(0) != q.shape(0) || k.shape(3) != q.shape(3)) {
    refuse_attention("k has shape ", k.shape(), "; its B and D must be those of q, ", q.shape());
  }
  if (k.shape(1) == 0 || q.shape(1) % k.shape(1) != 0) {
    refuse_attention("k has ", k.shape(1), " heads; they must divide the ", q.shape(1), " of q");
  }
  if (!std::equal(k.shape().begin(), k.shape().end() - 1, v.shape().begin())) {
    refuse_attention("v has shape ", v.shape(), "; its B, H and T must be those of k, ", k.shape());
  }
}

void check_prefix(const std::pair<mx::array, mx::array>& prefix, const mx::array& k, const mx::array& v) {
  const auto& [prefix_k, prefix_v] = prefix;
  for (const auto& [name, x, own] : {std::tuple("keys", &prefix_k, &k), {"values", &prefix_v, &v}}) {
    if (x->ndim() != 3 || x->shape(0) != own->shape(1) || x->shape(2) != own->shape(3)) {
      refuse_attention(
          "prefix has ", name, " of shape ", x->shape(), "; it must be (", own->shape(1), ",P,", own->shape(3), ")"
      );
    }
  }
  if (prefix_k.shape(1) != prefix_v.shape(1)) {
    refuse_attention("prefix has ", prefix_k.shape(1), " keys and ", prefix_v.shape(1), " values; as many of both");
  }
}

// [B] integers, as int32.
mx::array checked_bounds(const char* argument, const mx::array& x, int B, mx::Stream s) {
  if (x.shape() != mx::Shape{B} || !mx::issubdtype(x.dtype(), mx::integer)) {
    refuse_attention(argument, " has shape ", x.shape(), " and dtype ", x.dtype(), "; it must be ", B, " integers");
  }
  return as_int32(x, s);
}

mx::array checked_sinks(const mx::array& sinks, int heads, mx::Stream s) {
  if (sinks.shape() != mx::Shape{heads} || !mx::issubdtype(sinks.dtype(), mx::floating)) {
    refuse_attention(
        "sinks has shape ", sinks.shape(), " and dtype ", sinks.dtype(), "; it must be ", heads, " floats"
    );
  }
  return mx::astype(sinks, mx::float32, s);
}

// Booleans, or floats in `dtype`.
mx::array checked_mask(const mx::array& mask, const mx::Shape& shape, mx::Dtype dtype, mx::Stream s) {
  const auto& given = mask.shape();
  bool fits = given.size() <= shape.size();
  for (size_t i = 1; fits && i <= given.size(); ++i) {
    const auto size = given[given.size() - i];
    fits = size == 1 || size == shape[shape.size() - i];
  }
  if (!fits) {
    refuse_attention("mask has shape ", given, "; it must broadcast to [B, Hq, Tq, P + Tk], ", shape);
  }
  if (mask.dtype() == mx::bool_) {
    return mask;
  }
  if (!mx::issubdtype(mask.dtype(), mx::floating)) {
    refuse_attention("mask has dtype ", mask.dtype(), "; it must be of booleans or floats");
  }
  return mx::astype(mask, dtype, s);
}

// A negative number in the parameters is no limit, so that none may be given.
int checked_reach(int reach) {
  if (reach < 0) {
    refuse_attention("window is ", reach, " on a side; it must be 0 or more, or None");
  }
  return reach;
}

void set_window(const AttentionWindow& window, AttentionParameters& parameters) {
  if (const int* both = std::get_if<int>(&window)) {
    parameters.window_left = parameters.window_right = checked_reach(*both);
    return;
  }
  const auto& [left, right] = std::get<1>(window);
  parameters.window_left = left ? checked_reach(*left) : -1;
  parameters.window_right = right ? checked_reach(*right) : -1;
}

float checked_scale(float scale) {
  if (!std::isfinite(scale)) {
    refuse_attention("scale is ", scale, "; it must be finite");
  }
  return scale;
}

float checked_softcap(float softcap) {
  if (!(softcap > 0.0f) || std::isinf(softcap)) {
    refuse_attention("softcap is ", softcap, "; it must be positive and finite");
  }
  return softcap;
}

void set_mask(
    const std::variant<std::string, mx::array>& mask,
    AttentionInputs& inputs,
    AttentionParameters& parameters,
    mx::Stream s
) {
  if (const auto* name = std::get_if<std::string>(&mask)) {
    if (*name != "causal") {
      refuse_attention("mask is '", *name, "'; it must be None, 'causal' or an array");
    }
    parameters.causal = true;
    return;
  }
  const auto& [q, k] = std::tie(inputs.q, inputs.k);
  const int keys = k.shape(2) + (inputs.prefix_k ? inputs.prefix_k->shape(1) : 0);
  const mx::Shape shape{q.shape(0), q.shape(1), q.shape(2), keys};
  inputs.mask = checked_mask(std::get<mx::array>(mask), shape, q.dtype(), s);
  parameters.mask_kind = inputs.mask->dtype() == mx::bool_ ? AttentionMask::boolean : AttentionMask::additive;
}

// What the numbers among the options say.
AttentionParameters parameters_of(float scale, const AttentionOptions& options) {
  AttentionParameters parameters;
  parameters.scale = checked_scale(scale);
  parameters.softcap = options.softcap ? checked_softcap(*options.softcap) : 0.0f;
  parameters.relaxed = parse_precision(op_name, options.precision);
  if (options.window) {
    set_window(*options.window, parameters);
  }
  parameters.prefix = options.prefix.has_value();
  parameters.starts = options.starts.has_value();
  parameters.lengths = options.lengths.has_value();
  parameters.sinks = options.sinks.has_value();
  return parameters;
}

// Queries, keys and values, with the prefix, in the dtype to which they promote.
AttentionInputs operands_of(
    const mx::array& q,
    const mx::array& k,
    const mx::array& v,
    const std::optional<std::pair<mx::array, mx::array>>& prefix,
    mx::Stream s
) {
  check_shapes(q, k, v);
  Arrays operands{q, k, v};
  if (prefix) {
    check_prefix(*prefix, k, v);
    operands.insert(operands.end(), {prefix->first, prefix->second});
  }
  const auto dtype = check_dtypes(op_name, operands);
  AttentionInputs inputs{mx::astype(q, dtype, s), mx::astype(k, dtype, s), mx::astype(v, dtype, s)};
  if (prefix) {
    inputs.prefix_k = mx::astype(prefix->first, dtype, s);
    inputs.prefix_v = mx::astype(prefix->second, dtype, s);
  }
  return inputs;
}

} // namespace

mx::array attention(
    const mx::array& q,
    const mx::array& k,
    const mx::array& v,
    float scale,
    const AttentionOptions& options,
    mx::StreamOrDevice stream_or_device
) {
  const auto s = mx::to_stream(stream_or_device);
  auto inputs = operands_of(q, k, v, options.prefix, s);
  auto parameters = parameters_of(scale, options);
  if (options.mask) {
    set_mask(*options.mask, inputs, parameters, s);
  }
  if (options.starts) {
    inputs.starts = checked_bounds("starts", *options.starts, q.shape(0), s);
  }
  if (options.lengths) {
    inputs.lengths = checked_bounds("lengths", *options.lengths, q.shape(0), s);
  }
  if (options.sinks) {
    inputs.sinks = checked_sinks(*options.sinks, q.shape(1), s);
  }
  return Attention(s, parameters).build(inputs.list())[0];
}

} // namespace tessl
