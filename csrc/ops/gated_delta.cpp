#include "ops/gated_delta.h"

#include <algorithm>
#include <string_view>

#include <mlx/ops.h>
#include <mlx/transforms.h>

#include "backends/cpu/elements.h"
#include "backends/cpu/gated_delta.h"
#include "launch/emulation.h"
#include "ops/checks.h"
#include "ops/gated_delta_meaning.h"
#include "ops/gated_delta_plan.h"
#include "ops/precision.h"
#include "ops/row_op.h"
#include "ops/varying.h"

namespace tessl {
namespace {

constexpr std::string_view op_name = "mlx_tessl.gated_delta";

cpu::TokensView tokens_view(const mx::array& x) {
  cpu::TokensView view{x.data<char>(), cpu::element_of(x.dtype()), {}};
  std::copy(x.strides().begin(), x.strides().end(), view.strides.begin());
  return view;
}

// [Hv, Dv, Dk] or [1, Hv, Dv, Dk] serves every row of the batch.
cpu::TokensView state_view(const mx::array& state) {
  cpu::TokensView view{state.data<char>(), cpu::Element::float32, {}};
  std::copy(state.strides().begin(), state.strides().end(), view.strides.end() - static_cast<int64_t>(state.ndim()));
  if (state.ndim() == 3 || state.shape(0) == 1) {
    view.strides[0] = 0;
  }
  return view;
}

cpu::TokenRange range_of(const std::optional<mx::array>& starts, const std::optional<mx::array>& lengths) {
  cpu::TokenRange range;
  if (starts) {
    range.starts = starts->data<int32_t>();
    range.starts_stride = starts->strides(0);
  }
  if (lengths) {
    range.lengths = lengths->data<int32_t>();
    range.lengths_stride = lengths->strides(0);
  }
  return range;
}

cpu::GatedDelta problem_of(const GatedDeltaInputs& inputs, bool normalize_qk) {
  cpu::GatedDelta problem{
      .B = inputs.q.shape(0),
      .T = inputs.q.shape(1),
      .Hk = inputs.q.shape(2),
      .Hv = inputs.v.shape(2),
      .Dk = inputs.q.shape(3),
      .Dv = inputs.v.shape(3),
      .q = tokens_view(inputs.q),
      .k = tokens_view(inputs.k),
      .v = tokens_view(inputs.v),
      .g = tokens_view(inputs.g),
      .beta = tokens_view(inputs.beta),
      .range = range_of(inputs.starts, inputs.lengths),
      .normalize_qk = normalize_qk,
      .y = nullptr,
      .final_state = nullptr,
  };
  if (inputs.state) {
    problem.state = state_view(*inputs.state);
  }
  if (inputs.A_log) {
    problem.A_log = inputs.A_log->data<float>();
    problem.A_log_stride = inputs.A_log->strides(0);
    problem.dt_bias = inputs.dt_bias->data<float>();
    problem.dt_bias_stride = inputs.dt_bias->strides(0);
  }
  return problem;
}

mx::Shape state_shape(const GatedDeltaInputs& inputs) {
  return {inputs.q.shape(0), inputs.v.shape(2), inputs.v.shape(3), inputs.q.shape(3)};
}

Arrays zeros_like_primals(const Arrays& primals, const std::vector<int>& argnums, mx::Stream s) {
  Arrays zeros;
  for (int i : argnums) {
    zeros.push_back(mx::zeros_like(primals[i], s));
  }
  return zeros;
}

// x for each of `members` mapped ones, as more rows of the batch.
mx::array more_rows(const mx::array& x, int axis, int members, mx::Stream s) {
  if (axis >= 0) {
    return mx::flatten(mx::moveaxis(x, axis, 0, s), 0, 1, s);
  }
  auto shape = x.shape();
  shape.insert(shape.begin(), members);
  return mx::flatten(mx::broadcast_to(mx::expand_dims(x, 0, s), shape, s), 0, 1, s);
}

bool runs_shaders(mx::Stream s) {
  return s.device == mx::Device::gpu || current_emulation();
}

GatedDeltaProblem plan_problem(const GatedDeltaInputs& inputs, const GatedDeltaForm& form) {
  auto operand = [](const std::optional<mx::array>& x) { return x ? std::optional(Operand::of(*x)) : std::nullopt; };
  return {
      .dtype = inputs.q.dtype(),
      .form = form,
      .q = Operand::of(inputs.q),
      .k = Operand::of(inputs.k),
      .v = Operand::of(inputs.v),
      .g = Operand::of(inputs.g),
      .beta = Operand::of(inputs.beta),
      .state = operand(inputs.state),
      .starts = operand(inputs.starts),
      .lengths = operand(inputs.lengths),
      .A_log = operand(inputs.A_log),
      .dt_bias = operand(inputs.dt_bias),
  };
}

// A primitive whose derivatives are those of its meaning in stock ops, unless it has its own.
class DeltaOp : public Op {
 public:
  using Op::Op;

  // Of nothing the tangents are nothing: some stock ops refuse it.
  Arrays make_jvp(const Arrays& primals, const Arrays& tangents, const std::vector<int>& argnums) override {
    if (primals[0].shape(0) == 0) {
      Arrays nothing;
      for (const auto& shape : output_shapes(primals)) {
        nothing.push_back(mx::zeros(shape, nothing.empty() ? primals[0].dtype() : mx::float32, stream()));
      }
      return nothing;
    }
    return mx::jvp(varying(meaning(), primals, argnums), chosen(primals, argnums), tangents).second;
  }

 protected:
  virtual std::function<Arrays(const Arrays&)> meaning() = 0;

  Arrays stock_vjp(const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums) {
    return mx::vjp(varying(meaning(), primals, argnums), chosen(primals, argnums), cotangents).second;
  }
};

// Gradients with respect to q, k, v, g, beta (float32) and the state of every row, from those of y and the last state.
// Inputs: those of a gated_delta without gates, whose state has a row for each of the batch, then the two gradients.
class GatedDeltaGradient : public DeltaOp {
 public:
  GatedDeltaGradient(mx::Stream stream, const GatedDeltaForm& form) : DeltaOp(stream), form_(form) {
  }

  Arrays make_vjp(
      const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums, const Arrays&
  ) override {
    return stock_vjp(primals, cotangents, argnums);
  }

  std::pair<Arrays, std::vector<int>> make_vmap(const Arrays& inputs, const std::vector<int>& axes) override {
    const auto outputs = mx::vmap(meaning(), axes)(inputs);
    return {outputs, std::vector<int>(outputs.size(), 0)};
  }

  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override {
    const auto named = GatedDeltaInputs::from(inputs, form_);
    return {
        named.q.shape(), named.k.shape(), named.v.shape(), named.g.shape(), named.beta.shape(), named.state->shape()
    };
  }

  const char* name() const override {
    return "mlx_tessl.gated_delta_gradient";
  }

 protected:
  Plan plan(const Arrays& inputs, const Arrays&, const DeviceProfile&) const override {
    return plan_gated_delta_grad({
        .forward = plan_problem(GatedDeltaInputs::from(inputs, form_), form_),
        .dy = Operand::of(inputs[inputs.size() - 2]),
        .dfinal_state = Operand::of(inputs.back()),
    });
  }

  std::function<void()> compute(const Arrays& inputs, Arrays& outputs) const override {
    const auto named = GatedDeltaInputs::from(inputs, form_);
    const auto count = inputs.size();
    const cpu::GatedDeltaGradient problem{
        .forward = problem_of(named, form_.normalize_qk),
        .dy = tokens_view(inputs[count - 2]),
        .dfinal_state = state_view(inputs[count - 1]),
        .dq = outputs[0].data<float>(),
        .dk = outputs[1].data<float>(),
        .dv = outputs[2].data<float>(),
        .dg = outputs[3].data<float>(),
        .dbeta = outputs[4].data<float>(),
        .dstate = outputs[5].data<float>(),
    };
    return [problem] { cpu::gated_delta_gradient(problem); };
  }

  bool same_parameters(const Op& other) const override {
    return form_ == static_cast<const GatedDeltaGradient&>(other).form_;
  }

  std::function<Arrays(const Arrays&)> meaning() override {
    return [form = form_, s = stream()](const Arrays& inputs) {
      const Arrays forward(inputs.begin(), inputs.end() - 2);
      const Arrays varied(forward.begin(), forward.begin() + 6);
      auto f = [&](const Arrays& x) {
        auto all = forward;
        std::copy(x.begin(), x.end(), all.begin());
        return gated_delta_in_stock_ops(all, form, s);
      };
      return mx::vjp(f, varied, {inputs[inputs.size() - 2], inputs.back()}).second;
    };
  }

 private:
  GatedDeltaForm form_;
};

Arrays build(const GatedDeltaInputs& inputs, const GatedDeltaForm& form, mx::Stream s);

class GatedDelta : public DeltaOp {
 public:
  GatedDelta(mx::Stream stream, const GatedDeltaForm& form) : DeltaOp(stream), form_(form) {
  }

  Arrays make_vjp(
      const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums, const Arrays&
  ) override {
    const auto inputs = GatedDeltaInputs::from(primals, form_);
    if (inputs.q.size() == 0 || inputs.v.size() == 0) {
      return inputs.q.shape(1) == 0 ? stock_vjp(primals, cotangents, argnums)
                                    : zeros_like_primals(primals, argnums, stream());
    }
    if (runs_shaders(stream()) && inputs.q.shape(3) > most_chunk_columns) {
      return stock_vjp(primals, cotangents, argnums);
    }
    return gradients(inputs, primals, cotangents, argnums);
  }

  std::pair<Arrays, std::vector<int>> make_vmap(const Arrays& inputs, const std::vector<int>& axes) override;

  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override {
    const auto named = GatedDeltaInputs::from(inputs, form_);
    return {named.v.shape(), state_shape(named)};
  }

  const char* name() const override {
    return "mlx_tessl.gated_delta";
  }

 protected:
  // Where nothing else holds the state, its memory becomes the new one's.
  void allocate(const Arrays& inputs, Arrays& outputs) const override {
    const auto named = GatedDeltaInputs::from(inputs, form_);
    outputs[0].set_data(mx::allocator::malloc(outputs[0].nbytes()));
    const auto& state = named.state;
    const bool whole = state && state->shape() == outputs[1].shape() && state->flags().row_contiguous &&
                       state->data_size() == state->size();
    if (whole && state->is_donatable()) {
      outputs[1].copy_shared_buffer(*state);
    } else {
      outputs[1].set_data(mx::allocator::malloc(outputs[1].nbytes()));
    }
  }

  Plan plan(const Arrays& arrays, const Arrays&, const DeviceProfile& device) const override {
    return plan_gated_delta(plan_problem(GatedDeltaInputs::from(arrays, form_), form_), device);
  }

  std::function<void()> compute(const Arrays& inputs, Arrays& outputs) const override {
    auto problem = problem_of(GatedDeltaInputs::from(inputs, form_), form_.normalize_qk);
    problem.y = outputs[0].data<char>();
    problem.final_state = outputs[1].data<float>();
    return [problem] { cpu::gated_delta(problem); };
  }

  bool same_parameters(const Op& other) const override {
    return form_ == static_cast<const GatedDelta&>(other).form_;
  }

  std::function<Arrays(const Arrays&)> meaning() override {
    return [form = form_, s = stream()](const Arrays& inputs) { return gated_delta_in_stock_ops(inputs, form, s); };
  }

 private:
  // By GatedDeltaGradient, and through the gates in stock ops.
  Arrays gradients(
      const GatedDeltaInputs& inputs, const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums
  );

  GatedDeltaForm form_;
};

Arrays GatedDelta::gradients(
    const GatedDeltaInputs& inputs, const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums
) {
  const auto s = stream();
  auto gates = [s](const Arrays& x) { return gates_in_stock_ops(x[0], x[1], x[2], x[3], s); };
  auto direct = inputs;
  direct.A_log.reset();
  direct.dt_bias.reset();
  Arrays gate_inputs;
  if (form_.has_gates) {
    gate_inputs = {
        with_zeros_outside(inputs.g, inputs, s),
        with_zeros_outside(inputs.beta, inputs, s),
        *inputs.A_log,
        *inputs.dt_bias
    };
    const auto values = gates(gate_inputs);
    direct.g = values[0];
    direct.beta = values[1];
  }
  const auto shape = state_shape(inputs);
  const auto state = inputs.state.value_or(mx::zeros({}, mx::float32, s));
  direct.state = mx::broadcast_to(state, shape, s);
  GatedDeltaForm form = form_;
  form.has_gates = false;
  form.has_state = true;
  auto all = direct.list();
  all.insert(all.end(), cotangents.begin(), cotangents.end());

  auto primitive = std::make_shared<GatedDeltaGradient>(s, form);
  const auto shapes = primitive->output_shapes(all);
  auto found = mx::array::make_arrays(shapes, std::vector<mx::Dtype>(shapes.size(), mx::float32), primitive, all);
  Arrays of_gates;
  if (form_.has_gates) {
    of_gates = mx::vjp(gates, gate_inputs, {found[3], found[4]}).second;
  }

  // By their places among the primals.
  Arrays in_order(found.begin(), found.begin() + 3);
  in_order.push_back(form_.has_gates ? of_gates[0] : found[3]);
  in_order.push_back(form_.has_gates ? of_gates[1] : found[4]);
  if (form_.has_state) {
    const bool shared = inputs.state->ndim() == 3 || inputs.state->shape(0) != shape[0];
    auto gradient = shared ? mx::sum(found[5], 0, /* keepdims = */ true, s) : found[5];
    in_order.push_back(mx::reshape(gradient, inputs.state->shape(), s));
  }
  for (const auto* whole : {&inputs.starts, &inputs.lengths}) {
    if (*whole) {
      in_order.push_back(mx::zeros_like(**whole, s));
    }
  }
  if (form_.has_gates) {
    in_order.push_back(of_gates[2]);
    in_order.push_back(of_gates[3]);
  }
  Arrays result;
  for (int i : argnums) {
    result.push_back(mx::astype(in_order[i], primals[i].dtype(), s));
  }
  return result;
}

// The states of `members` mapped ones for B rows each, where a state may be shared by all rows.
mx::array more_states(mx::array state, int axis, int members, int B, mx::Stream s) {
  if (axis >= 0) {
    state = mx::moveaxis(state, axis, 0, s);
  }
  const int own_ndim = static_cast<int>(state.ndim()) - (axis >= 0);
  if (own_ndim == 3) {
    state = mx::expand_dims(state, axis >= 0 ? 1 : 0, s);
  }
  if (axis < 0) {
    state = mx::expand_dims(state, 0, s);
  }
  auto shape = state.shape();
  shape[0] = members;
  shape[1] = B;
  return mx::flatten(mx::broadcast_to(state, shape, s), 0, 1, s);
}

std::pair<Arrays, std::vector<int>> GatedDelta::make_vmap(const Arrays& inputs, const std::vector<int>& axes) {
  constexpr size_t state_place = 5;
  const auto s = stream();
  auto is_mapped = [](int axis) { return axis >= 0; };
  const auto mapped = std::find_if(axes.begin(), axes.end(), is_mapped);
  if (mapped == axes.end()) {
    return {build(GatedDeltaInputs::from(inputs, form_), form_, s), {-1, -1}};
  }
  const size_t per_row = inputs.size() - 2 * form_.has_gates;
  if (std::any_of(axes.begin() + static_cast<int64_t>(per_row), axes.end(), is_mapped)) {
    return {mx::vmap(meaning(), axes)(inputs), {0, 0}};
  }
  const int members = inputs[mapped - axes.begin()].shape(*mapped);
  auto rows = inputs;
  for (size_t i = 0; i < per_row; ++i) {
    const bool is_state = form_.has_state && i == state_place;
    rows[i] = is_state ? more_states(inputs[i], axes[i], members, rows[0].shape(0) / std::max(members, 1), s)
                       : more_rows(inputs[i], axes[i], members, s);
  }
  auto outputs = build(GatedDeltaInputs::from(rows, form_), form_, s);
  for (auto& output : outputs) {
    output = mx::unflatten(output, 0, {members, output.shape(0) / std::max(members, 1)}, s);
  }
  return {outputs, {0, 0}};
}

Arrays build(const GatedDeltaInputs& inputs, const GatedDeltaForm& form, mx::Stream s) {
  auto all = inputs.list();
  if (runs_shaders(s) && inputs.q.shape(1) == 0) {
    return gated_delta_in_stock_ops(all, form, s);
  }
  auto primitive = std::make_shared<GatedDelta>(s, form);
  const auto shapes = primitive->output_shapes(all);
  return mx::array::make_arrays(shapes, {inputs.q.dtype(), mx::float32}, primitive, std::move(all));
}

void check_shapes(const mx::array& q, const mx::array& k, const mx::array& v) {
  for (const auto& [name, x] : {std::pair("q", &q), {"k", &k}, {"v", &v}}) {
    if (x->ndim() != 4) {
      refuse(op_name, name, " has shape ", x->shape(), "; it must have 4 dimensions, [B, T, H, D]");
    }
  }
  if (k.shape() != q.shape()) {
    refuse(op_name, "k has shape ", k.shape(), "; it must be that of q, ", q.shape());
  }
  if (v.shape(0) != q.shape(0) || v.shape(1) != q.shape(1)) {
    refuse(op_name, "v has shape ", v.shape(), "; its B and T must be those of q, ", q.shape());
  }
  if (q.shape(2) == 0 || v.shape(2) % q.shape(2) != 0) {
    refuse(op_name, "q has ", q.shape(2), " heads; they must divide the ", v.shape(2), " of v");
  }
  if (q.shape(3) == 0 || v.shape(3) == 0) {
    refuse(op_name, "q has shape ", q.shape(), " and v ", v.shape(), "; their rows must not be empty");
  }
}

void check_shape(const char* name, const mx::array& x, const mx::Shape& shape) {
  if (x.shape() != shape) {
    refuse(op_name, name, " has shape ", x.shape(), "; it must be ", shape);
  }
}

void check_state(const mx::array& state, const mx::Shape& shape) {
  const auto ndim = state.ndim();
  const bool fits = (ndim == 3 || ndim == 4) && std::equal(shape.end() - 3, shape.end(), state.shape().end() - 3) &&
                    (ndim == 3 || state.shape(0) == shape[0] || state.shape(0) == 1);
  if (!fits) {
    refuse(op_name, "state has shape ", state.shape(), "; it must be ", shape, ", or without B, or with B = 1");
  }
}

} // namespace

std::pair<mx::array, mx::array> gated_delta(
    const mx::array& q,
    const mx::array& k,
    const mx::array& v,
    const std::optional<mx::array>& g,
    const std::optional<mx::array>& beta,
    const std::optional<mx::array>& state,
    const std::optional<DeltaGates>& gates,
    const std::optional<mx::array>& starts,
    const std::optional<mx::array>& lengths,
    bool normalize_qk,
    const std::optional<std::string>& precision,
    mx::StreamOrDevice stream
) {
  check_shapes(q, k, v);
  if (gates ? (g || beta) : !(g && beta)) {
    refuse(op_name, "either g and beta, or gates must be given");
  }
  const mx::Shape of_gates{v.shape(0), v.shape(1), v.shape(2)};
  const auto& first = gates ? std::get<0>(*gates) : *g;
  const auto& second = gates ? std::get<1>(*gates) : *beta;
  check_shape(gates ? "a" : "g", first, of_gates);
  check_shape(gates ? "b" : "beta", second, of_gates);
  std::vector<mx::array> typed{q, k, v};
  if (gates) {
    check_shape("A_log", std::get<2>(*gates), {v.shape(2)});
    check_shape("dt_bias", std::get<3>(*gates), {v.shape(2)});
    typed.insert(typed.end(), {first, second});
  }
  const auto dtype = check_dtypes(op_name, typed);
  if (state) {
    check_state(*state, {q.shape(0), v.shape(2), v.shape(3), q.shape(3)});
    check_real(op_name, "state", *state);
  }
  check_real(op_name, gates ? "a" : "g", first);
  check_real(op_name, gates ? "b" : "beta", second);
  if (gates) {
    check_real(op_name, "A_log", std::get<2>(*gates));
    check_real(op_name, "dt_bias", std::get<3>(*gates));
  }
  for (const auto& [name, x] : {std::pair("starts", &starts), {"lengths", &lengths}}) {
    if (*x) {
      check_shape(name, **x, {q.shape(0)});
      check_integers(op_name, name, **x);
    }
  }

  const auto s = mx::to_stream(stream);
  if (runs_shaders(s) && q.shape(3) > most_delta_columns) {
    refuse(op_name, "q has rows of ", q.shape(3), "; on a GPU they must have at most ", most_delta_columns);
  }
  const auto gate_dtype = gates ? dtype : mx::float32;
  auto cast = [s](const mx::array& x, mx::Dtype to) { return mx::astype(x, to, s); };
  GatedDeltaInputs inputs{
      cast(q, dtype),
      cast(k, dtype),
      cast(v, dtype),
      cast(first, gate_dtype),
      cast(second, gate_dtype),
      {},
      {},
      {},
      {},
      {}
  };
  if (state) {
    inputs.state = cast(*state, mx::float32);
  }
  if (starts) {
    inputs.starts = as_int32(*starts, s);
  }
  if (lengths) {
    inputs.lengths = as_int32(*lengths, s);
  }
  if (gates) {
    inputs.A_log = cast(std::get<2>(*gates), mx::float32);
    inputs.dt_bias = cast(std::get<3>(*gates), mx::float32);
  }
  const GatedDeltaForm form{
      .has_gates = gates.has_value(),
      .has_state = state.has_value(),
      .has_starts = starts.has_value(),
      .has_lengths = lengths.has_value(),
      .normalize_qk = normalize_qk,
      .relaxed = parse_precision(op_name, precision),
  };
  const auto outputs = build(inputs, form, s);
  return {outputs[0], outputs[1]};
}

} // namespace tessl
