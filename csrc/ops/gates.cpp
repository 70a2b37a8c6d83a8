#include "ops/gates.h"

#include <numbers>
#include <string_view>

#include <mlx/ops.h>

#include "backends/cpu/gates.h"
#include "ops/checks.h"
#include "ops/gates_plan.h"
#include "ops/row_op.h"

namespace tessl {
namespace {

mx::array scalar(float value) {
  return mx::array(value, mx::float32);
}

mx::array half_of(const mx::array& z, const mx::array& factor, mx::Stream s) {
  return mx::multiply(mx::multiply(scalar(0.5f), z, s), mx::add(scalar(1.0f), factor, s), s);
}

mx::array apply_function(GateFunction function, const mx::array& z, mx::Stream s) {
  switch (function) {
    case GATE_SIGMOID:
      return mx::sigmoid(z, s);
    case GATE_SILU:
      return mx::multiply(z, mx::sigmoid(z, s), s);
    case GATE_GELU: {
      const float sqrt_half = 1.0f / std::numbers::sqrt2_v<float>;
      return half_of(z, mx::erf(mx::multiply(z, scalar(sqrt_half), s), s), s);
    }
    case GATE_GELU_TANH: {
      // u = sqrt(2 / pi) (z + 0.044715 z^3); tanh is 1 in float32 from 9.02 on, its second derivative in MLX is NaN
      // from 89 on.
      const float r = std::numbers::inv_sqrtpi_v<float> * std::numbers::sqrt2_v<float>;
      const auto cubic = mx::multiply(scalar(0.044715f), mx::multiply(z, mx::square(z, s), s), s);
      const auto u = mx::multiply(scalar(r), mx::add(z, cubic, s), s);
      return half_of(z, mx::tanh(mx::clip(u, scalar(-15.0f), scalar(15.0f), s), s), s);
    }
  }
  throw std::runtime_error("unknown gate function");
}

class Gate : public RowOp {
 public:
  Gate(mx::Stream stream, GateFunction function) : RowOp(stream), function_(function) {
  }

  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override {
    return {broadcast_shape(inputs)};
  }

  const char* name() const override {
    return "mlx_tessl.gate";
  }

 protected:
  Plan plan(const Arrays& inputs, const Arrays& outputs, const DeviceProfile&) const override {
    return plan_gate(problem(inputs, outputs[0]));
  }

  std::function<void()> compute(const Arrays& inputs, Arrays& outputs) const override {
    const auto gate = problem(inputs, outputs[0]);
    const cpu::Gate work{
        function_, gate.rows, cpu_rows(inputs[0], gate.gate), cpu_rows(inputs[1], gate.x), outputs[0].data<char>()
    };
    return [work] { cpu::gate(work); };
  }

  bool same_parameters(const Op& other) const override {
    return function_ == static_cast<const Gate&>(other).function_;
  }

  Meaning meaning() override {
    return [function = function_, s = stream()](const Arrays& inputs) {
      const auto gate = apply_function(function, mx::astype(inputs[0], mx::float32, s), s);
      const auto product = mx::multiply(gate, mx::astype(inputs[1], mx::float32, s), s);
      return Arrays{mx::astype(product, inputs[0].dtype(), s)};
    };
  }

  size_t row_inputs() const override {
    return 2;
  }

  Arrays apply(const Arrays& inputs) override {
    return make_outputs(std::make_shared<Gate>(stream(), function_), inputs[0].dtype(), inputs);
  }

 private:
  GateProblem problem(const Arrays& inputs, const mx::array& out) const {
    return make_gate_problem(out.dtype(), function_, out.shape(), Operand::of(inputs[0]), Operand::of(inputs[1]));
  }

  GateFunction function_;
};

struct Named {
  const char* name;
  const mx::array& array;
};

mx::array gate(
    std::string_view op, GateFunction function, const Named& gate, const Named& x, mx::StreamOrDevice stream
) {
  for (const auto& [name, array] : {gate, x}) {
    check_rows(op, name, array);
  }
  const auto pairs = std::min(gate.array.ndim(), x.array.ndim());
  for (size_t i = 1; i <= pairs; ++i) {
    const auto a = gate.array.shape(-static_cast<int>(i));
    const auto b = x.array.shape(-static_cast<int>(i));
    if (a != b && a != 1 && b != 1) {
      refuse(
          op, gate.name, " of shape ", gate.array.shape(), " and ", x.name, " of ", x.array.shape(), " do not broadcast"
      );
    }
  }
  const auto dtype = check_dtypes(op, {gate.array, x.array});
  const auto s = mx::to_stream(stream);
  const auto inputs = promote({gate.array, x.array}, dtype, s);
  return make_outputs(std::make_shared<Gate>(s, function), dtype, inputs)[0];
}

} // namespace

mx::array sigmoid_gate(const mx::array& x, const mx::array& gate_array, mx::StreamOrDevice stream) {
  return gate("mlx_tessl.sigmoid_gate", GATE_SIGMOID, {"gate", gate_array}, {"x", x}, stream);
}

mx::array swiglu(const mx::array& gate_array, const mx::array& up, mx::StreamOrDevice stream) {
  return gate("mlx_tessl.swiglu", GATE_SILU, {"gate", gate_array}, {"up", up}, stream);
}

mx::array geglu(
    const mx::array& gate_array, const mx::array& up, const std::string& approximate, mx::StreamOrDevice stream
) {
  constexpr std::string_view op = "mlx_tessl.geglu";
  if (approximate != "none" && approximate != "tanh") {
    refuse(op, "approximate is '", approximate, "'; it must be 'none' or 'tanh'");
  }
  return gate(op, approximate == "tanh" ? GATE_GELU_TANH : GATE_GELU, {"gate", gate_array}, {"up", up}, stream);
}

} // namespace tessl
