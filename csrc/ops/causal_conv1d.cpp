#include "ops/causal_conv1d.h"

#include <algorithm>
#include <string_view>

#include <mlx/ops.h>
#include <mlx/transforms.h>

#include "backends/cpu/causal_conv1d.h"
#include "backends/cpu/elements.h"
#include "launch/emulation.h"
#include "ops/causal_conv1d_plan.h"
#include "ops/checks.h"
#include "ops/row_op.h"
#include "ops/varying.h"

namespace tessl {
namespace {

constexpr std::string_view op_name = "mlx_tessl.causal_conv1d";

// Which optional inputs there are, after x and weight, and the one parameter.
struct Form {
  bool has_state = false;
  bool has_starts = false;
  bool has_lengths = false;
  bool with_silu = false;

  bool operator==(const Form&) const = default;
};

struct Inputs {
  mx::array x, weight;
  std::optional<mx::array> state, starts, lengths;

  static Inputs from(const Arrays& inputs, const Form& form) {
    size_t next = 2;
    auto take = [&](bool is_there) { return is_there ? std::optional(inputs[next++]) : std::nullopt; };
    Inputs named{inputs[0], inputs[1], {}, {}, {}};
    named.state = take(form.has_state);
    named.starts = take(form.has_starts);
    named.lengths = take(form.has_lengths);
    return named;
  }
};

// The twin of mlx_tessl/reference/causal_conv1d.py.
Arrays in_stock_ops(const Arrays& arrays, const Form& form, mx::Stream s) {
  const auto inputs = Inputs::from(arrays, form);
  const auto dtype = inputs.x.dtype();
  const int B = inputs.x.shape(0);
  const int T = inputs.x.shape(1);
  const int C = inputs.x.shape(2);
  const int K = inputs.weight.shape(1);
  const auto state = inputs.state.value_or(mx::zeros({K - 1, C}, dtype, s));

  auto column = [&](const mx::array& x) { return mx::reshape(x, {B, 1}, s); };
  const auto whole = mx::full({B, 1}, T, mx::int32, s);
  const auto zero = mx::zeros({B, 1}, mx::int32, s);
  const auto end = inputs.lengths ? mx::minimum(mx::maximum(column(*inputs.lengths), zero, s), whole, s) : whole;
  const auto start = inputs.starts ? mx::minimum(mx::maximum(column(*inputs.starts), zero, s), end, s) : zero;

  // Tokens that are passed over are hidden before anything is computed of them: a gradient of zero through a NaN would
  // be NaN.
  const bool hides = inputs.starts || inputs.lengths;
  const auto t = mx::reshape(mx::arange(T, s), {1, T}, s);
  const auto inside = mx::expand_dims(mx::logical_and(mx::greater_equal(t, start, s), mx::less(t, end, s), s), -1, s);
  const auto x = hides ? mx::where(inside, inputs.x, mx::array(0.0f, dtype), s) : inputs.x;
  const auto rows = mx::concatenate({mx::broadcast_to(state, {B, K - 1, C}, s), x}, 1, s);

  // Rows of tokens by number; before a row's first token stands its state.
  auto taken = [&](const mx::array& t) {
    const auto place = mx::add(t, mx::array(K - 1), s);
    const auto before = mx::maximum(mx::subtract(place, start, s), mx::array(0), s);
    const auto source = mx::where(mx::greater_equal(t, start, s), place, before, s);
    return mx::take_along_axis(rows, mx::expand_dims(source, -1, s), 1, s);
  };
  auto y = mx::zeros({B, T, C}, mx::float32, s);
  for (int j = 0; j < K; ++j) {
    const auto tap = inputs.starts ? taken(mx::broadcast_to(mx::subtract(t, mx::array(K - 1 - j), s), {B, T}, s))
                                   : mx::slice(rows, {0, j, 0}, {B, j + T, C}, s);
    const auto weight = mx::astype(mx::take(inputs.weight, j, 1, s), mx::float32, s);
    y = mx::add(y, mx::multiply(weight, mx::astype(tap, mx::float32, s), s), s);
  }
  if (form.with_silu) {
    y = mx::multiply(y, mx::sigmoid(y, s), s);
  }
  if (!hides) {
    return {mx::astype(y, dtype, s), mx::slice(rows, {0, T, 0}, {B, T + K - 1, C}, s)};
  }
  y = mx::where(inside, y, mx::array(0.0f), s);
  const auto last = mx::add(end, mx::reshape(mx::arange(1 - K, 0, s), {1, K - 1}, s), s);
  return {mx::astype(y, dtype, s), taken(last)};
}

template <size_t N>
std::array<int64_t, N> strides_of(const mx::array& x) {
  std::array<int64_t, N> strides{};
  std::copy(x.strides().begin(), x.strides().end(), strides.end() - static_cast<int64_t>(x.ndim()));
  return strides;
}

bool runs_shaders(mx::Stream s) {
  return s.device == mx::Device::gpu || current_emulation();
}

CausalConv1dProblem plan_problem(const Inputs& inputs, const Form& form) {
  auto operand = [](const std::optional<mx::array>& x) { return x ? std::optional(Operand::of(*x)) : std::nullopt; };
  return {
      .dtype = inputs.x.dtype(),
      .x = Operand::of(inputs.x),
      .weight = Operand::of(inputs.weight),
      .state = operand(inputs.state),
      .starts = operand(inputs.starts),
      .lengths = operand(inputs.lengths),
      .with_silu = form.with_silu,
  };
}

// Gradients of x, of the weight and of the state of every row (float32), from those of y and the new state. Inputs:
// those of causal_conv1d, then the two gradients. A CPU has no code of its own for it: there it is never built.
class CausalConv1dGradient : public RowOp {
 public:
  CausalConv1dGradient(mx::Stream stream, const Form& form) : RowOp(stream), form_(form) {
  }

  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override {
    return {inputs[0].shape(), inputs[1].shape(), inputs.back().shape()};
  }

  const char* name() const override {
    return "mlx_tessl.causal_conv1d_gradient";
  }

  Arrays apply(const Arrays& inputs) override {
    const auto dtype = inputs[0].dtype();
    auto primitive = std::make_shared<CausalConv1dGradient>(stream(), form_);
    return mx::array::make_arrays(output_shapes(inputs), {dtype, dtype, mx::float32}, primitive, inputs);
  }

 protected:
  Plan plan(const Arrays& inputs, const Arrays&, const DeviceProfile&) const override {
    return plan_causal_conv1d_grad({
        .forward = plan_problem(Inputs::from(inputs, form_), form_),
        .dy = Operand::of(inputs[inputs.size() - 2]),
        .dlast = Operand::of(inputs.back()),
    });
  }

  std::function<void()> compute(const Arrays&, Arrays&) const override {
    throw std::runtime_error("[mlx_tessl.causal_conv1d] a gradient for shaders was given to a CPU");
  }

  bool same_parameters(const Op& other) const override {
    return form_ == static_cast<const CausalConv1dGradient&>(other).form_;
  }

  Meaning meaning() override {
    return [form = form_, s = stream()](const Arrays& inputs) {
      Arrays forward(inputs.begin(), inputs.end() - 2);
      const auto& x = inputs[0];
      auto state_shape = inputs.back().shape();
      std::vector<int> varied{0, 1, 2};
      Form with_state = form;
      with_state.has_state = true;
      if (!form.has_state) {
        forward.insert(forward.begin() + 2, mx::zeros(state_shape, x.dtype(), s));
      }
      forward[2] = mx::astype(mx::broadcast_to(forward[2], state_shape, s), mx::float32, s);
      auto f = [with_state, s](const Arrays& all) {
        auto typed = all;
        typed[2] = mx::astype(all[2], all[0].dtype(), s);
        return in_stock_ops(typed, with_state, s);
      };
      return mx::vjp(varying(f, forward, varied), chosen(forward, varied), {inputs[inputs.size() - 2], inputs.back()})
          .second;
    };
  }

  size_t row_inputs() const override {
    return 0;
  }

 private:
  Form form_;
};

Arrays build(const Arrays& inputs, const Form& form, mx::Stream s);

class CausalConv1d : public RowOp {
 public:
  CausalConv1d(mx::Stream stream, const Form& form) : RowOp(stream), form_(form) {
  }

  Arrays make_vjp(
      const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums, const Arrays& outputs
  ) override {
    if (!runs_shaders(stream()) || cotangents[0].size() == 0) {
      return RowOp::make_vjp(primals, cotangents, argnums, outputs);
    }
    auto inputs = primals;
    inputs.insert(inputs.end(), cotangents.begin(), cotangents.end());
    auto gradients = CausalConv1dGradient(stream(), form_).apply(inputs);
    if (form_.has_state) {
      gradients[2] = of_given_state(gradients[2], primals[2]);
    }
    Arrays result;
    for (int i : argnums) {
      const bool varies = i < 2 + form_.has_state;
      result.push_back(varies ? gradients[i] : mx::zeros_like(primals[i], stream()));
    }
    return result;
  }

  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override {
    const auto& x = inputs[0].shape();
    return {x, {x[0], inputs[1].shape(1) - 1, x[2]}};
  }

  const char* name() const override {
    return "mlx_tessl.causal_conv1d";
  }

 protected:
  Plan plan(const Arrays& arrays, const Arrays&, const DeviceProfile&) const override {
    return plan_causal_conv1d(plan_problem(Inputs::from(arrays, form_), form_));
  }

  std::function<void()> compute(const Arrays& arrays, Arrays& outputs) const override {
    const auto inputs = Inputs::from(arrays, form_);
    cpu::CausalConv1d problem{
        .element = cpu::element_of(inputs.x.dtype()),
        .B = inputs.x.shape(0),
        .T = inputs.x.shape(1),
        .C = inputs.x.shape(2),
        .K = inputs.weight.shape(1),
        .x = inputs.x.data<char>(),
        .x_strides = strides_of<3>(inputs.x),
        .weight = inputs.weight.data<char>(),
        .weight_strides = strides_of<2>(inputs.weight),
        .state = nullptr,
        .state_strides = {},
        .range = {},
        .with_silu = form_.with_silu,
        .y = outputs[0].data<char>(),
        .new_state = outputs[1].data<char>(),
    };
    if (inputs.state) {
      problem.state = inputs.state->data<char>();
      problem.state_strides = strides_of<3>(*inputs.state);
      if (inputs.state->ndim() == 2 || inputs.state->shape(0) == 1) {
        problem.state_strides[0] = 0; // one state for all rows
      }
    }
    if (inputs.starts) {
      problem.range.starts = inputs.starts->data<int32_t>();
      problem.range.starts_stride = inputs.starts->strides(0);
    }
    if (inputs.lengths) {
      problem.range.lengths = inputs.lengths->data<int32_t>();
      problem.range.lengths_stride = inputs.lengths->strides(0);
    }
    return [problem] { cpu::causal_conv1d(problem); };
  }

  bool same_parameters(const Op& other) const override {
    return form_ == static_cast<const CausalConv1d&>(other).form_;
  }

  Meaning meaning() override {
    return [form = form_, s = stream()](const Arrays& inputs) { return in_stock_ops(inputs, form, s); };
  }

  size_t row_inputs() const override {
    return 0;
  }

  Arrays apply(const Arrays& inputs) override {
    return build(inputs, form_, stream());
  }

 private:
  // From the gradients of the state of every row: a state may be shared by all rows.
  mx::array of_given_state(const mx::array& gradients, const mx::array& state) {
    const auto s = stream();
    const bool shared = state.ndim() == 2 || state.shape(0) != gradients.shape(0);
    const auto sum = shared ? mx::sum(gradients, 0, /* keepdims = */ true, s) : gradients;
    return mx::astype(mx::reshape(sum, state.shape(), s), state.dtype(), s);
  }

  Form form_;
};

Arrays build(const Arrays& inputs, const Form& form, mx::Stream s) {
  if (runs_shaders(s) && (inputs[0].shape(1) == 0 || inputs[1].shape(1) == 1)) {
    return in_stock_ops(inputs, form, s); // nothing to compute, or no state to keep
  }
  return make_outputs(std::make_shared<CausalConv1d>(s, form), inputs[0].dtype(), inputs);
}

void check_shapes(const mx::array& x, const mx::array& weight, const std::optional<mx::array>& state) {
  if (x.ndim() != 3 || x.shape(2) == 0) {
    refuse(op_name, "x has shape ", x.shape(), "; it must be [B, T, C] with channels");
  }
  if (weight.ndim() != 2 || weight.shape(0) != x.shape(2) || weight.shape(1) == 0) {
    refuse(op_name, "weight has shape ", weight.shape(), "; it must be (", x.shape(2), ",K) with K > 0");
  }
  if (!state) {
    return;
  }
  const mx::Shape shape{x.shape(0), weight.shape(1) - 1, x.shape(2)};
  const auto ndim = state->ndim();
  const bool fits = (ndim == 2 || ndim == 3) && std::equal(shape.end() - 2, shape.end(), state->shape().end() - 2) &&
                    (ndim == 2 || state->shape(0) == shape[0] || state->shape(0) == 1);
  if (!fits) {
    refuse(op_name, "state has shape ", state->shape(), "; it must be ", shape, ", or without B, or with B = 1");
  }
}

} // namespace

std::pair<mx::array, mx::array> causal_conv1d(
    const mx::array& x,
    const mx::array& weight,
    const std::optional<mx::array>& state,
    const std::optional<std::string>& activation,
    const std::optional<mx::array>& starts,
    const std::optional<mx::array>& lengths,
    mx::StreamOrDevice stream
) {
  check_shapes(x, weight, state);
  if (activation && *activation != "silu") {
    refuse(op_name, "activation is '", *activation, "'; it must be 'silu' or None");
  }
  Arrays typed{x, weight};
  if (state) {
    typed.push_back(*state);
  }
  const auto dtype = check_dtypes(op_name, typed);
  const auto s = mx::to_stream(stream);
  auto inputs = promote(typed, dtype, s);
  for (const auto& [name, range] : {std::pair("starts", &starts), {"lengths", &lengths}}) {
    if (*range) {
      if ((*range)->shape() != mx::Shape{x.shape(0)}) {
        refuse(op_name, name, " has shape ", (*range)->shape(), "; it must be (", x.shape(0), ",)");
      }
      check_integers(op_name, name, **range);
      inputs.push_back(as_int32(**range, s));
    }
  }
  const Form form{state.has_value(), starts.has_value(), lengths.has_value(), activation.has_value()};
  const auto outputs = build(inputs, form, s);
  return {outputs[0], outputs[1]};
}

} // namespace tessl
