#include "ops/norms.h"

#include <cmath>
#include <string_view>

#include <mlx/ops.h>

#include "backends/cpu/norms.h"
#include "ops/checks.h"
#include "ops/norms_plan.h"
#include "ops/row_op.h"

namespace tessl {
namespace {

using Present = NormOptionals<bool>;
using Optionals = NormOptionals<std::optional<mx::array>>;

template <typename T, typename U, typename Function>
NormOptionals<U> each(const NormOptionals<T>& x, Function f) {
  return {f(x.residual), f(x.gate), f(x.weight), f(x.bias)};
}

Optionals optionals_of(const Arrays& inputs, const Present& present) {
  size_t next = 1;
  auto take = [&](bool is_there) { return is_there ? std::optional(inputs[next++]) : std::nullopt; };
  Optionals optionals;
  optionals.residual = take(present.residual);
  optionals.gate = take(present.gate);
  optionals.weight = take(present.weight);
  optionals.bias = take(present.bias);
  return optionals;
}

mx::array float32(const mx::array& x, mx::Stream s) {
  return mx::astype(x, mx::float32, s);
}

Arrays compose(const mx::array& x, const Optionals& optionals, const NormParameters& parameters, mx::Stream s) {
  const auto dtype = x.dtype();
  const auto& [residual, gate, weight, bias] = optionals;
  auto sum = float32(x, s);
  if (residual) {
    sum = mx::add(sum, float32(*residual, s), s);
  }
  const auto centered = parameters.centered ? mx::subtract(sum, mean_of_columns(sum, s), s) : sum;
  const auto variance = mean_of_columns(mx::square(centered, s), s);
  auto y = mx::multiply(centered, mx::rsqrt(mx::add(variance, mx::array(parameters.eps), s), s), s);
  if (weight) {
    y = mx::multiply(y, mx::add(float32(*weight, s), mx::array(parameters.weight_offset), s), s);
  }
  if (bias) {
    y = mx::add(y, float32(*bias, s), s);
  }
  if (gate) {
    const auto g = float32(*gate, s);
    y = mx::multiply(y, mx::multiply(g, mx::sigmoid(g, s), s), s);
  }
  Arrays outputs{mx::astype(y, dtype, s)};
  if (residual) {
    outputs.push_back(mx::astype(sum, dtype, s));
  }
  return outputs;
}

class Norm : public RowOp {
 public:
  Norm(mx::Stream stream, const NormParameters& parameters, const Present& present)
      : RowOp(stream), parameters_(parameters), present_(present) {
  }

  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override {
    return std::vector<mx::Shape>(present_.residual ? 2 : 1, inputs[0].shape());
  }

  const char* name() const override {
    return "mlx_tessl.norm";
  }

 protected:
  Plan plan(const Arrays& inputs, const Arrays&, const DeviceProfile&) const override {
    return plan_norm(problem(inputs));
  }

  std::function<void()> compute(const Arrays& inputs, Arrays& outputs) const override {
    const auto norm = problem(inputs);
    const auto optionals = optionals_of(inputs, present_);
    auto rows = [](const std::optional<mx::array>& array, const std::optional<RowSource>& source) {
      return array ? cpu_rows(*array, *source) : cpu::RowsInput{};
    };
    const cpu::Norm work{
        .rows = norm.rows,
        .x = cpu_rows(inputs[0], norm.x),
        .residual = rows(optionals.residual, norm.optionals.residual),
        .gate = rows(optionals.gate, norm.optionals.gate),
        .weight = rows(optionals.weight, norm.optionals.weight),
        .bias = rows(optionals.bias, norm.optionals.bias),
        .centered = parameters_.centered,
        .eps = parameters_.eps,
        .weight_offset = parameters_.weight_offset,
        .out = outputs[0].data<char>(),
        .sum = present_.residual ? outputs[1].data<char>() : nullptr,
    };
    return [work] { cpu::norm(work); };
  }

  bool same_parameters(const Op& other) const override {
    const auto& op = static_cast<const Norm&>(other);
    return parameters_ == op.parameters_ && present_ == op.present_;
  }

  Meaning meaning() override {
    return [parameters = parameters_, present = present_, s = stream()](const Arrays& inputs) {
      return compose(inputs[0], optionals_of(inputs, present), parameters, s);
    };
  }

  size_t row_inputs() const override {
    return 1 + present_.residual + present_.gate;
  }

  Arrays apply(const Arrays& inputs) override;

 private:
  NormProblem problem(const Arrays& inputs) const {
    const auto operands =
        each<std::optional<mx::array>, std::optional<Operand>>(optionals_of(inputs, present_), [](const auto& array) {
          return array ? std::optional(Operand::of(*array)) : std::nullopt;
        });
    return make_norm_problem(inputs[0].dtype(), parameters_, Operand::of(inputs[0]), operands);
  }

  NormParameters parameters_;
  Present present_;
};

Arrays build(const Arrays& inputs, const NormParameters& parameters, const Present& present, mx::Stream s) {
  return make_outputs(std::make_shared<Norm>(s, parameters, present), inputs[0].dtype(), inputs);
}

Arrays Norm::apply(const Arrays& inputs) {
  return build(inputs, parameters_, present_, stream());
}

NormResult norm(
    std::string_view op,
    const mx::array& x,
    const Optionals& optionals,
    const NormParameters& parameters,
    mx::StreamOrDevice stream
) {
  check_rows(op, "x", x);
  if (!(parameters.eps >= 0.0f) || std::isinf(parameters.eps)) {
    refuse(op, "eps is ", parameters.eps, "; it must be finite and not negative");
  }
  if (!std::isfinite(parameters.weight_offset)) {
    refuse(op, "weight_offset is ", parameters.weight_offset, "; it must be finite");
  }
  Arrays inputs{x};
  for (const auto& [argument, rows] : {std::pair("residual", &optionals.residual), {"gate", &optionals.gate}}) {
    if (*rows) {
      check_broadcast(op, argument, **rows, x.shape());
      inputs.push_back(**rows);
    }
  }
  for (const auto& [argument, row] : {std::pair("weight", &optionals.weight), {"bias", &optionals.bias}}) {
    if (*row) {
      check_columns(op, argument, *row, x.shape(-1));
      inputs.push_back(**row);
    }
  }
  const auto dtype = check_dtypes(op, inputs);
  const auto present =
      each<std::optional<mx::array>, bool>(optionals, [](const auto& array) { return array.has_value(); });
  const auto s = mx::to_stream(stream);
  const auto outputs = build(promote(inputs, dtype, s), parameters, present, s);
  return {outputs[0], present.residual ? std::optional(outputs[1]) : std::nullopt};
}

} // namespace

NormResult rms_norm(
    const mx::array& x,
    const std::optional<mx::array>& weight,
    float eps,
    const std::optional<mx::array>& residual,
    float weight_offset,
    mx::StreamOrDevice stream
) {
  Optionals optionals;
  optionals.residual = residual;
  optionals.weight = weight;
  return norm("mlx_tessl.rms_norm", x, optionals, {false, eps, weight_offset}, stream);
}

NormResult layer_norm(
    const mx::array& x,
    const std::optional<mx::array>& weight,
    const std::optional<mx::array>& bias,
    float eps,
    const std::optional<mx::array>& residual,
    mx::StreamOrDevice stream
) {
  Optionals optionals;
  optionals.residual = residual;
  optionals.weight = weight;
  optionals.bias = bias;
  return norm("mlx_tessl.layer_norm", x, optionals, {true, eps, 0.0f}, stream);
}

mx::array gated_rms_norm(
    const mx::array& x, const mx::array& gate, const mx::array& weight, float eps, mx::StreamOrDevice stream
) {
  Optionals optionals;
  optionals.gate = gate;
  optionals.weight = weight;
  return norm("mlx_tessl.gated_rms_norm", x, optionals, {false, eps, 0.0f}, stream).first;
}

} // namespace tessl
