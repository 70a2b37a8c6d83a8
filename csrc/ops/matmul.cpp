#include "ops/matmul.h"

#include <algorithm>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include <mlx/ops.h>

#include "backends/cpu/matmul.h"
#include "backends/cpu/onednn_matmul.h"
#include "launch/decimal.h"
#include "ops/activation.h"
#include "ops/broadcast.h"
#include "ops/matmul_members.h"
#include "ops/matmul_plan.h"
#include "ops/op.h"
#include "ops/precision.h"

namespace tessl {
namespace {

constexpr int max_ndim = MATMUL_MAX_BATCH_DIMS + 2;

// Which of the optional operands follow a and b in the primitive's inputs, in this order.
struct Addends {
  bool c = false;
  bool bias = false;
  bool residual = false;

  bool operator==(const Addends&) const = default;
};

// The primitive's inputs by name.
struct MatmulInputs {
  mx::array a;
  mx::array b;
  std::optional<mx::array> c;
  std::optional<mx::array> bias;
  std::optional<mx::array> residual;

  static MatmulInputs from(const std::vector<mx::array>& inputs, const Addends& addends) {
    size_t next = 2;
    auto take = [&](bool present) { return present ? std::optional(inputs[next++]) : std::nullopt; };
    auto c = take(addends.c);
    auto bias = take(addends.bias);
    auto residual = take(addends.residual);
    return {inputs[0], inputs[1], std::move(c), std::move(bias), std::move(residual)};
  }

  std::vector<mx::array> list() const {
    std::vector<mx::array> inputs{a, b};
    for (const auto* addend : {&c, &bias, &residual}) {
      if (*addend) {
        inputs.push_back(**addend);
      }
    }
    return inputs;
  }

  Addends addends() const {
    return {c.has_value(), bias.has_value(), residual.has_value()};
  }
};

struct MatmulParameters {
  MatmulEpilogue epilogue;
  bool relaxed = false;
  bool batch_invariant = false;

  bool operator==(const MatmulParameters&) const = default;
};

mx::array build(const MatmulInputs& inputs, const MatmulParameters& parameters, mx::Stream stream);

mx::array transposed(const mx::array& x, mx::Stream s) {
  return mx::swapaxes(x, -1, -2, s);
}

class Matmul : public Op {
 public:
  Matmul(mx::Stream stream, const Addends& addends, const MatmulParameters& parameters)
      : Op(stream), addends_(addends), parameters_(parameters) {
  }

  std::vector<mx::array> make_vjp(
      const std::vector<mx::array>& primals,
      const std::vector<mx::array>& cotangents,
      const std::vector<int>& argnums,
      const std::vector<mx::array>& outputs
  ) override;

  std::vector<mx::array> make_jvp(
      const std::vector<mx::array>& primals, const std::vector<mx::array>& tangents, const std::vector<int>& argnums
  ) override;

  std::pair<std::vector<mx::array>, std::vector<int>> make_vmap(
      const std::vector<mx::array>& inputs, const std::vector<int>& axes
  ) override;

  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
    return {shape_of(inputs)};
  }

  const char* name() const override {
    return "mlx_tessl.matmul";
  }

  // [batch..., M, N], the batch broadcast over all operands.
  static mx::Shape shape_of(const std::vector<mx::array>& inputs);

 protected:
  Plan plan(
      const std::vector<mx::array>& inputs, const std::vector<mx::array>&, const DeviceProfile& device
  ) const override {
    return plan_matmul(problem(inputs), device);
  }

  std::function<void()> compute(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) const override {
    const auto call = problem(inputs);
    auto products = products_of_members<cpu::Matmul>(
        call, inputs, outputs[0], [&](const MemberViews& view, char* out) -> cpu::Matmul {
          return {
              .dtype = call.dtype,
              .M = call.M,
              .N = call.N,
              .K = call.K,
              .a = view(call.a),
              .b = view(call.b),
              .c = view(call.c),
              .bias = view(call.bias),
              .residual = view(call.residual),
              .alpha = call.epilogue.alpha,
              .beta = call.epilogue.beta,
              .activation = call.epilogue.activation,
              .batch_invariant = call.batch_invariant,
              .out = out,
          };
        }
    );
    if (!products.empty()) {
      cpu::goes_through_onednn(products.front()); // opens it on this thread
    }
    return [products = std::move(products)] { cpu::matmul(products); };
  }

  bool same_parameters(const Op& other) const override {
    const auto& op = static_cast<const Matmul&>(other);
    return addends_ == op.addends_ && parameters_ == op.parameters_;
  }

 private:
  MatmulProblem problem(const std::vector<mx::array>& arrays) const {
    const auto inputs = MatmulInputs::from(arrays, addends_);
    return make_matmul_problem(
        inputs.a.dtype(),
        Operand::of(inputs.a),
        Operand::of(inputs.b),
        operand_of(inputs.c),
        operand_of(inputs.bias),
        operand_of(inputs.residual),
        parameters_.epilogue,
        parameters_.relaxed,
        parameters_.batch_invariant
    );
  }

  mx::array product(const mx::array& a, const mx::array& b, float alpha) {
    MatmulParameters parameters = parameters_;
    parameters.epilogue = {alpha, 0.0f, MATMUL_ACTIVATION_NONE};
    return build({a, b, {}, {}, {}}, parameters, stream());
  }

  // activation'(z) times x, where z is what the activation was applied to. z is computed again rather than kept.
  mx::array through_activation(const MatmulInputs& primals, const mx::array& x) {
    const auto activation = parameters_.epilogue.activation;
    if (activation == MATMUL_ACTIVATION_NONE) {
      return x;
    }
    MatmulParameters parameters = parameters_;
    parameters.epilogue.activation = MATMUL_ACTIVATION_NONE;
    const auto z = build({primals.a, primals.b, primals.c, primals.bias, {}}, parameters, stream());
    const auto slope = activation_derivative(activation, z, stream());
    return mx::astype(mx::multiply(slope, mx::astype(x, mx::float32, stream()), stream()), x.dtype(), stream());
  }

  mx::array gradient_of_b(const mx::array& a, const mx::array& b, const mx::array& dz);

  Addends addends_;
  MatmulParameters parameters_;
};

mx::Shape Matmul::shape_of(const std::vector<mx::array>& inputs) {
  const auto& a = inputs[0].shape();
  const auto& b = inputs[1].shape();
  mx::Shape shape = mx::broadcast_shapes(mx::Shape(a.begin(), a.end() - 2), mx::Shape(b.begin(), b.end() - 2));
  shape.push_back(a[a.size() - 2]);
  shape.push_back(b[b.size() - 1]);
  for (size_t i = 2; i < inputs.size(); ++i) {
    shape = mx::broadcast_shapes(shape, inputs[i].shape());
  }
  return shape;
}

// alpha a^T dz, summed over the batch. A weight shared by the whole batch is one product over all rows.
mx::array Matmul::gradient_of_b(const mx::array& a, const mx::array& b, const mx::array& dz) {
  const float alpha = parameters_.epilogue.alpha;
  if (b.ndim() == 2 && a.ndim() == dz.ndim() && a.ndim() > 2) {
    const auto rows = mx::flatten(a, 0, -2, stream());
    const auto drows = mx::flatten(dz, 0, -2, stream());
    if (rows.shape(0) == drows.shape(0)) {
      return product(transposed(rows, stream()), drows, alpha);
    }
  }
  return sum_to_shape(product(transposed(a, stream()), dz, alpha), b.shape(), stream());
}

std::vector<mx::array> Matmul::make_vjp(
    const std::vector<mx::array>& primals,
    const std::vector<mx::array>& cotangents,
    const std::vector<int>& argnums,
    const std::vector<mx::array>&
) {
  const auto inputs = MatmulInputs::from(primals, addends_);
  const auto& cotangent = cotangents[0];
  const int residual_input = addends_.residual ? static_cast<int>(primals.size()) - 1 : -1;
  const bool only_residual = std::all_of(argnums.begin(), argnums.end(), [&](int i) { return i == residual_input; });
  const auto dz = only_residual ? cotangent : through_activation(inputs, cotangent);

  std::vector<mx::array> gradients;
  for (int i : argnums) {
    if (i == 0) {
      const auto full = product(dz, transposed(inputs.b, stream()), parameters_.epilogue.alpha);
      gradients.push_back(sum_to_shape(full, inputs.a.shape(), stream()));
    } else if (i == 1) {
      gradients.push_back(gradient_of_b(inputs.a, inputs.b, dz));
    } else if (i == residual_input) {
      gradients.push_back(sum_to_shape(cotangent, primals[i].shape(), stream()));
    } else {
      auto gradient = sum_to_shape(dz, primals[i].shape(), stream());
      if (addends_.c && i == 2) {
        gradient = mx::multiply(mx::array(parameters_.epilogue.beta, gradient.dtype()), gradient, stream());
      }
      gradients.push_back(std::move(gradient));
    }
  }
  return gradients;
}

std::vector<mx::array> Matmul::make_jvp(
    const std::vector<mx::array>& primals, const std::vector<mx::array>& tangents, const std::vector<int>& argnums
) {
  const auto inputs = MatmulInputs::from(primals, addends_);
  const int residual_input = addends_.residual ? static_cast<int>(primals.size()) - 1 : -1;
  std::optional<mx::array> dz;
  std::optional<mx::array> dresidual;
  auto accumulate = [&](std::optional<mx::array>& sum, const mx::array& term) {
    sum = sum ? mx::add(*sum, term, stream()) : term;
  };
  for (size_t i = 0; i < argnums.size(); ++i) {
    const auto& tangent = tangents[i];
    const float alpha = parameters_.epilogue.alpha;
    if (argnums[i] == 0) {
      accumulate(dz, product(tangent, inputs.b, alpha));
    } else if (argnums[i] == 1) {
      accumulate(dz, product(inputs.a, tangent, alpha));
    } else if (argnums[i] == residual_input) {
      accumulate(dresidual, tangent);
    } else if (addends_.c && argnums[i] == 2) {
      accumulate(dz, mx::multiply(mx::array(parameters_.epilogue.beta, tangent.dtype()), tangent, stream()));
    } else {
      accumulate(dz, tangent);
    }
  }
  const auto shape = shape_of(primals);
  std::optional<mx::array> sum;
  if (dz) {
    accumulate(sum, through_activation(inputs, mx::broadcast_to(*dz, shape, stream())));
  }
  if (dresidual) {
    accumulate(sum, mx::broadcast_to(*dresidual, shape, stream()));
  }
  return {*sum};
}

std::pair<std::vector<mx::array>, std::vector<int>> Matmul::make_vmap(
    const std::vector<mx::array>& inputs, const std::vector<int>& axes
) {
  const bool batched = std::any_of(axes.begin(), axes.end(), [](int axis) { return axis >= 0; });
  if (!batched) {
    return {{build(MatmulInputs::from(inputs, addends_), parameters_, stream())}, {-1}};
  }
  const auto stacked = stack_for_vmap(inputs, axes, stream());
  return {{build(MatmulInputs::from(stacked, addends_), parameters_, stream())}, {0}};
}

mx::array build(const MatmulInputs& inputs, const MatmulParameters& parameters, mx::Stream stream) {
  auto list = inputs.list();
  auto shape = Matmul::shape_of(list);
  const auto dtype = inputs.a.dtype();
  auto primitive = std::make_shared<Matmul>(stream, inputs.addends(), parameters);
  return mx::array(std::move(shape), dtype, std::move(primitive), std::move(list));
}

template <typename Shape>
std::string text(const Shape& shape) {
  std::ostringstream out;
  out << shape;
  return out.str();
}

[[noreturn]] void refuse(std::string_view op, const std::string& message) {
  throw std::invalid_argument("[" + std::string(op) + "] " + message);
}

// The dtype of the result, to which every operand is promoted.
mx::Dtype check_dtypes(std::string_view op, const MatmulInputs& inputs) {
  const auto dtype = mx::result_type(inputs.list());
  if (dtype != mx::float32 && dtype != mx::float16 && dtype != mx::bfloat16) {
    std::ostringstream message;
    message << "operands promote to " << dtype << "; they must promote to float32, float16 or bfloat16";
    refuse(op, message.str());
  }
  return dtype;
}

void check_ndim(std::string_view op, const char* argument, const mx::array& x, int lowest) {
  const int ndim = static_cast<int>(x.ndim());
  if (ndim < lowest || ndim > max_ndim) {
    refuse(
        op,
        std::string(argument) + " has shape " + text(x.shape()) + "; it must have " + decimal(lowest) + " to " +
            decimal(max_ndim) + " dimensions"
    );
  }
}

void check_product(
    std::string_view op, const mx::array& a, const mx::array& b, const char* a_name, const char* b_name
) {
  if (a.shape(-1) != b.shape(-2)) {
    refuse(
        op,
        std::string(a_name) + " and " + b_name + " share the dimension K, but it is " + decimal(a.shape(-1)) +
            " in one and " + decimal(b.shape(-2)) + " in the other"
    );
  }
  const auto pairs = std::min(a.ndim(), b.ndim());
  for (size_t i = 3; i <= pairs; ++i) {
    const int axis = -static_cast<int>(i);
    if (a.shape(axis) != b.shape(axis) && a.shape(axis) != 1 && b.shape(axis) != 1) {
      refuse(
          op,
          std::string("batch dimensions of ") + a_name + " " + text(a.shape()) + " and " + b_name + " " +
              text(b.shape()) + " do not broadcast"
      );
    }
  }
}

void check_addend(
    std::string_view op, const char* argument, const std::optional<mx::array>& addend, const mx::Shape& shape
) {
  if (!addend) {
    return;
  }
  const auto& given = addend->shape();
  bool fits = given.size() <= shape.size();
  for (size_t i = 1; fits && i <= given.size(); ++i) {
    const auto dim = given[given.size() - i];
    fits = dim == 1 || dim == shape[shape.size() - i];
  }
  if (!fits) {
    refuse(
        op, std::string(argument) + " has shape " + text(given) + "; it must broadcast to the result's " + text(shape)
    );
  }
}

void check_bias(std::string_view op, const std::optional<mx::array>& bias, int N) {
  if (bias && (bias->ndim() != 1 || bias->shape(0) != N)) {
    refuse(op, "bias has shape " + text(bias->shape()) + "; it must be (" + decimal(N) + ",)");
  }
}

MatmulInputs promote(const MatmulInputs& inputs, mx::Dtype dtype, mx::Stream s) {
  auto cast = [&](const std::optional<mx::array>& x) {
    return x ? std::optional(mx::astype(*x, dtype, s)) : std::nullopt;
  };
  return {
      mx::astype(inputs.a, dtype, s),
      mx::astype(inputs.b, dtype, s),
      cast(inputs.c),
      cast(inputs.bias),
      cast(inputs.residual)
  };
}

} // namespace

mx::array matmul(
    const mx::array& a,
    const mx::array& b,
    const std::optional<mx::array>& c,
    float alpha,
    float beta,
    const std::optional<mx::array>& bias,
    const std::optional<std::string>& activation,
    const std::optional<std::string>& precision,
    bool batch_invariant,
    mx::StreamOrDevice stream_or_device
) {
  constexpr std::string_view op = "mlx_tessl.matmul";
  const MatmulEpilogue epilogue{alpha, beta, parse_activation(op, activation)};
  const bool relaxed = parse_precision(op, precision);
  check_ndim(op, "a", a, 1);
  check_ndim(op, "b", b, 1);
  if (c) {
    check_ndim(op, "c", *c, 0);
  }
  const auto stream = mx::to_stream(stream_or_device);
  const bool row = a.ndim() == 1;
  const bool column = b.ndim() == 1;
  const auto matrix_a = row ? mx::expand_dims(a, 0, stream) : a;
  const auto matrix_b = column ? mx::expand_dims(b, 1, stream) : b;
  check_product(op, matrix_a, matrix_b, "a", "b");

  MatmulInputs inputs{matrix_a, matrix_b, c, bias, {}};
  const auto dtype = check_dtypes(op, inputs);
  check_addend(op, "c", c, Matmul::shape_of({matrix_a, matrix_b}));
  check_bias(op, bias, matrix_b.shape(-1));
  if (c && beta == 0.0f) {
    inputs.c.reset();
  }
  const MatmulParameters parameters{epilogue, relaxed && dtype == mx::float32, batch_invariant};
  auto out = build(promote(inputs, dtype, stream), parameters, stream);
  if (row) {
    out = mx::squeeze(out, -2, stream);
  }
  return column ? mx::squeeze(out, -1, stream) : out;
}

mx::array linear(
    const mx::array& x,
    const mx::array& weight,
    const std::optional<mx::array>& bias,
    const std::optional<std::string>& activation,
    const std::optional<mx::array>& residual,
    const std::optional<std::string>& precision,
    bool batch_invariant,
    mx::StreamOrDevice stream_or_device
) {
  constexpr std::string_view op = "mlx_tessl.linear";
  const MatmulEpilogue epilogue{1.0f, 0.0f, parse_activation(op, activation)};
  const bool relaxed = parse_precision(op, precision);
  check_ndim(op, "x", x, 1);
  if (weight.ndim() != 2) {
    refuse(op, "weight has shape " + text(weight.shape()) + "; it must be (N, K)");
  }
  const auto stream = mx::to_stream(stream_or_device);
  const bool row = x.ndim() == 1;
  const auto matrix_x = row ? mx::expand_dims(x, 0, stream) : x;
  const auto matrix_w = transposed(weight, stream);
  check_product(op, matrix_x, matrix_w, "x", "weight");

  const MatmulInputs inputs{matrix_x, matrix_w, {}, bias, residual};
  const auto dtype = check_dtypes(op, inputs);
  check_bias(op, bias, weight.shape(0));
  check_addend(op, "residual", residual, Matmul::shape_of({matrix_x, matrix_w}));
  const MatmulParameters parameters{epilogue, relaxed && dtype == mx::float32, batch_invariant};
  const auto out = build(promote(inputs, dtype, stream), parameters, stream);
  return row ? mx::squeeze(out, -2, stream) : out;
}

} // namespace tessl
