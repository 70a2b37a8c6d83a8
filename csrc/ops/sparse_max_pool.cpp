#include "ops/sparse_max_pool.h"

#include <limits>
#include <string_view>

#include <mlx/ops.h>

#include "backends/cpu/sparse_max_pool.h"
#include "ops/checks.h"
#include "ops/precision.h"
#include "ops/row_op.h"
#include "ops/sparse_max_pool_plan.h"

namespace tessl {
namespace {

constexpr std::string_view op_name = "mlx_tessl.sparse_max_pool";

struct SparseMaxPoolParameters {
  SparseActivation activation = SPARSE_ACTIVATION_LOG1P_RELU;
  bool sums = false;
  bool relaxed = false;
  bool has_bias = false;
  bool has_lengths = false;

  bool operator==(const SparseMaxPoolParameters&) const = default;
};

// The primitive's inputs by name.
struct SparseMaxPoolInputs {
  const mx::array& hidden;
  const mx::array& weight;
  const mx::array* bias;
  const mx::array* lengths;

  static SparseMaxPoolInputs from(const Arrays& inputs, const SparseMaxPoolParameters& parameters) {
    const mx::array* bias = parameters.has_bias ? &inputs[2] : nullptr;
    return {inputs[0], inputs[1], bias, parameters.has_lengths ? &inputs.back() : nullptr};
  }
};

mx::array activate(const mx::array& logits, const SparseMaxPoolParameters& parameters, mx::Stream s) {
  const auto once = mx::log1p(mx::maximum(logits, mx::array(0.0f), s), s);
  return parameters.activation == SPARSE_ACTIVATION_LOG1P_LOG1P_RELU ? mx::log1p(once, s) : once;
}

// With the logits of all tokens. The activation is monotonic: of the maximum it is taken once.
mx::array compose(const SparseMaxPoolInputs& inputs, const SparseMaxPoolParameters& parameters, mx::Stream s) {
  const auto& [hidden, weight, bias, lengths] = inputs;
  auto wide = [&](const mx::array& x) { return mx::astype(x, mx::float32, s); };
  if (hidden.shape(-2) == 0) {
    return mx::zeros({hidden.shape(0), weight.shape(0)}, hidden.dtype(), s);
  }
  // What no row counts is hidden before anything is computed of it: a gradient of zero through a NaN would be NaN.
  std::optional<mx::array> counts;
  auto tokens = wide(hidden);
  if (lengths) {
    const auto t = mx::arange(hidden.shape(-2), mx::int32, s);
    counts = mx::expand_dims(mx::less(t, mx::expand_dims(*lengths, -1, s), s), -1, s);
    tokens = mx::where(*counts, tokens, mx::array(0.0f), s);
  }
  auto logits = mx::matmul(tokens, mx::swapaxes(wide(weight), -1, -2, s), s);
  if (bias) {
    logits = mx::add(logits, wide(*bias), s);
  }
  auto values = parameters.sums ? activate(logits, parameters, s) : logits;
  if (counts) {
    values = mx::where(*counts, values, mx::array(parameters.sums ? 0.0f : -std::numeric_limits<float>::infinity()), s);
  }
  const auto pooled = parameters.sums ? mx::sum(values, -2, /* keepdims = */ false, s)
                                      : activate(mx::max(values, -2, /* keepdims = */ false, s), parameters, s);
  return mx::astype(pooled, hidden.dtype(), s);
}

class SparseMaxPool : public RowOp {
 public:
  SparseMaxPool(mx::Stream stream, const SparseMaxPoolParameters& parameters) : RowOp(stream), parameters_(parameters) {
  }

  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override {
    return {{inputs[0].shape(0), inputs[1].shape(0)}};
  }

  const char* name() const override {
    return op_name.data();
  }

 protected:
  Plan plan(const Arrays& arrays, const Arrays&, const DeviceProfile& device) const override {
    const auto inputs = SparseMaxPoolInputs::from(arrays, parameters_);
    auto operand_of = [](const mx::array* x) { return x ? std::optional(Operand::of(*x)) : std::nullopt; };
    const SparseMaxPoolProblem problem{
        inputs.hidden.dtype(),
        Operand::of(inputs.hidden),
        Operand::of(inputs.weight),
        operand_of(inputs.bias),
        operand_of(inputs.lengths),
        parameters_.activation,
        parameters_.sums,
        parameters_.relaxed,
    };
    return plan_sparse_max_pool(problem, device);
  }

  std::function<void()> compute(const Arrays& arrays, Arrays& outputs) const override {
    const auto& [hidden, weight, bias, lengths] = SparseMaxPoolInputs::from(arrays, parameters_);
    const cpu::SparseMaxPool work{
        .element = cpu::element_of(hidden.dtype()),
        .rows = hidden.shape(0),
        .tokens = hidden.shape(1),
        .units = hidden.shape(2),
        .words = weight.shape(0),
        .hidden = hidden.data<char>(),
        .hidden_strides = {hidden.strides(0), hidden.strides(1), hidden.strides(2)},
        .weight = weight.data<char>(),
        .weight_strides = {weight.strides(0), weight.strides(1)},
        .bias = bias ? bias->data<char>() : nullptr,
        .bias_stride = bias ? bias->strides(0) : 0,
        .lengths = lengths ? lengths->data<int32_t>() : nullptr,
        .length_stride = lengths ? lengths->strides(0) : 0,
        .activation = parameters_.activation,
        .sums = parameters_.sums,
        .out = outputs[0].data<char>(),
    };
    return [work] { cpu::sparse_max_pool(work); };
  }

  bool same_parameters(const Op& other) const override {
    return parameters_ == static_cast<const SparseMaxPool&>(other).parameters_;
  }

  Meaning meaning() override {
    return [parameters = parameters_, s = stream()](const Arrays& inputs) {
      return Arrays{compose(SparseMaxPoolInputs::from(inputs, parameters), parameters, s)};
    };
  }

  // A mapped input maps the meaning.
  size_t row_inputs() const override {
    return 0;
  }

  Arrays apply(const Arrays& inputs) override {
    return make_outputs(std::make_shared<SparseMaxPool>(stream(), parameters_), inputs[0].dtype(), inputs);
  }

 private:
  SparseMaxPoolParameters parameters_;
};

void check_shapes(
    const mx::array& hidden,
    const mx::array& weight,
    const std::optional<mx::array>& bias,
    const std::optional<mx::array>& lengths
) {
  if (hidden.ndim() != 3 || hidden.shape(2) == 0) {
    refuse(op_name, "hidden has shape ", hidden.shape(), "; it must be (B, T, H), of units that are not none");
  }
  if (weight.ndim() != 2 || weight.shape(1) != hidden.shape(2)) {
    refuse(op_name, "weight has shape ", weight.shape(), "; it must be (V, ", hidden.shape(2), ")");
  }
  check_columns(op_name, "bias", bias, weight.shape(0));
  if (lengths) {
    check_integers(op_name, "lengths", *lengths);
    check_columns(op_name, "lengths", lengths, hidden.shape(0));
  }
}

SparseActivation parse_sparse_activation(const std::string& name) {
  if (name == "log1p_relu") {
    return SPARSE_ACTIVATION_LOG1P_RELU;
  }
  if (name == "log1p_log1p_relu") {
    return SPARSE_ACTIVATION_LOG1P_LOG1P_RELU;
  }
  refuse(op_name, "activation is '", name, "'; it must be 'log1p_relu' or 'log1p_log1p_relu'");
}

bool parse_pooling(const std::string& name) {
  if (name != "max" && name != "sum") {
    refuse(op_name, "pooling is '", name, "'; it must be 'max' or 'sum'");
  }
  return name == "sum";
}

} // namespace

mx::array sparse_max_pool(
    const mx::array& hidden,
    const mx::array& weight,
    const std::optional<mx::array>& bias,
    const std::optional<mx::array>& lengths,
    const std::string& activation,
    const std::string& pooling,
    const std::optional<std::string>& precision,
    mx::StreamOrDevice stream
) {
  check_shapes(hidden, weight, bias, lengths);
  const SparseMaxPoolParameters parameters{
      parse_sparse_activation(activation),
      parse_pooling(pooling),
      parse_precision(op_name, precision),
      bias.has_value(),
      lengths.has_value(),
  };
  Arrays operands{hidden, weight};
  if (bias) {
    operands.push_back(*bias);
  }
  const auto dtype = check_dtypes(op_name, operands);
  const auto s = mx::to_stream(stream);
  auto inputs = promote(operands, dtype, s);
  if (lengths) {
    inputs.push_back(as_int32(*lengths, s));
  }
  return make_outputs(std::make_shared<SparseMaxPool>(s, parameters), dtype, inputs)[0];
}

} // namespace tessl
