#include "ops/int8_matmul.h"

#include <algorithm>

#include <mlx/ops.h>

#include "backends/cpu/int8_matmul.h"
#include "ops/activation.h"
#include "ops/broadcast.h"
#include "ops/int8_matmul_plan.h"
#include "ops/matmul_members.h"
#include "ops/op.h"
#include "ops/refusal.h"

namespace tessl {
namespace {

constexpr std::string_view op_name = "mlx_tessl.int8_matmul";
constexpr int max_ndim = MATMUL_MAX_BATCH_DIMS + 2;

// The primitive's inputs by name. scale_a is [..., M or 1, 1], scale_b [..., 1, N or 1], bias [N]; all float32.
struct Int8Inputs {
  mx::array a;
  mx::array b;
  std::optional<mx::array> scale_a;
  std::optional<mx::array> bias;
  std::optional<mx::array> scale_b;

  std::vector<mx::array> list() const {
    std::vector<mx::array> inputs{a, b};
    for (const auto* optional : {&scale_a, &bias, &scale_b}) {
      if (*optional) {
        inputs.push_back(**optional);
      }
    }
    return inputs;
  }
};

struct Int8Parameters {
  bool has_scale_a = false;
  bool has_bias = false;
  bool has_scale_b = false;
  MatmulActivation activation = MATMUL_ACTIVATION_NONE;
  mx::Dtype dtype = mx::int32;

  bool operator==(const Int8Parameters&) const = default;
};

mx::array build(const Int8Inputs& inputs, MatmulActivation activation, mx::Dtype dtype, mx::Stream stream);

class Int8Matmul : public Op {
 public:
  Int8Matmul(mx::Stream stream, const Int8Parameters& parameters) : Op(stream), parameters_(parameters) {
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
    return "mlx_tessl.int8_matmul";
  }

  // [batch..., M, N], the batch broadcast over all operands.
  static mx::Shape shape_of(const std::vector<mx::array>& inputs);

 protected:
  Plan plan(
      const std::vector<mx::array>& inputs, const std::vector<mx::array>&, const DeviceProfile& device
  ) const override {
    return plan_int8_matmul(problem(inputs), device);
  }

  std::function<void()> compute(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) const override;

  bool same_parameters(const Op& other) const override {
    return parameters_ == static_cast<const Int8Matmul&>(other).parameters_;
  }

 private:
  Int8Inputs named(const std::vector<mx::array>& inputs) const {
    size_t next = 2;
    auto take = [&](bool present) { return present ? std::optional(inputs[next++]) : std::nullopt; };
    auto scale_a = take(parameters_.has_scale_a);
    auto bias = take(parameters_.has_bias);
    auto scale_b = take(parameters_.has_scale_b);
    return {inputs[0], inputs[1], std::move(scale_a), std::move(bias), std::move(scale_b)};
  }

  Int8MatmulProblem problem(const std::vector<mx::array>& arrays) const {
    const auto inputs = named(arrays);
    return make_int8_matmul_problem(
        parameters_.dtype,
        Operand::of(inputs.a),
        Operand::of(inputs.b),
        operand_of(inputs.scale_a),
        operand_of(inputs.bias),
        operand_of(inputs.scale_b),
        parameters_.activation
    );
  }

  // a b times the factors that are there, in float32.
  mx::array scaled(
      const Int8Inputs& inputs, const std::optional<mx::array>& first, const std::optional<mx::array>& second
  ) {
    return build({inputs.a, inputs.b, first, {}, second}, MATMUL_ACTIVATION_NONE, mx::float32, stream());
  }

  // activation'(z) times x in float32, where z is what the activation was applied to.
  mx::array through_activation(const Int8Inputs& inputs, const mx::array& x) {
    const auto wide = mx::astype(x, mx::float32, stream());
    if (parameters_.activation == MATMUL_ACTIVATION_NONE) {
      return wide;
    }
    const auto z = build(inputs, MATMUL_ACTIVATION_NONE, mx::float32, stream());
    return mx::multiply(activation_derivative(parameters_.activation, z, stream()), wide, stream());
  }

  // Whether inputs[i] is scale_a, the bias or scale_b.
  bool is_scale_a(int i) const {
    return parameters_.has_scale_a && i == 2;
  }
  bool is_bias(int i) const {
    return parameters_.has_bias && i == 2 + parameters_.has_scale_a;
  }

  Int8Parameters parameters_;
};

mx::Shape Int8Matmul::shape_of(const std::vector<mx::array>& inputs) {
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

std::function<void()> Int8Matmul::compute(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) const {
  const auto call = problem(inputs);
  const auto& product = call.product;
  auto products = products_of_members<cpu::Int8Matmul>(
      product, inputs, outputs[0], [&](const MemberViews& view, char* out) -> cpu::Int8Matmul {
        return {
            .out_dtype = call.out,
            .M = product.M,
            .N = product.N,
            .K = product.K,
            .a = view(product.a),
            .b = view(product.b),
            .scale_a = view(call.scale_a),
            .scale_b = view(call.scale_b),
            .bias = view(product.bias),
            .activation = product.epilogue.activation,
            .out = out,
        };
      }
  );
  if (!products.empty()) {
    cpu::goes_through_onednn(products.front()); // opens it on this thread
  }
  return [products = std::move(products)] { cpu::int8_matmul(products); };
}

std::vector<mx::array> Int8Matmul::make_vjp(
    const std::vector<mx::array>& primals,
    const std::vector<mx::array>& cotangents,
    const std::vector<int>& argnums,
    const std::vector<mx::array>&
) {
  const auto inputs = named(primals);
  const auto dz = through_activation(inputs, cotangents[0]);
  std::vector<mx::array> gradients;
  for (int i : argnums) {
    if (i < 2) {
      refuse(op_name, i == 0 ? "a" : "b", " holds integers, which have no gradient");
    }
    const auto gradient = is_bias(i)      ? dz
                          : is_scale_a(i) ? mx::multiply(dz, scaled(inputs, {}, inputs.scale_b), stream())
                                          : mx::multiply(dz, scaled(inputs, inputs.scale_a, {}), stream());
    gradients.push_back(sum_to_shape(gradient, primals[i].shape(), stream()));
  }
  return gradients;
}

std::vector<mx::array> Int8Matmul::make_jvp(
    const std::vector<mx::array>& primals, const std::vector<mx::array>& tangents, const std::vector<int>& argnums
) {
  const auto inputs = named(primals);
  std::optional<mx::array> dz;
  for (size_t i = 0; i < argnums.size(); ++i) {
    const int argument = argnums[i];
    if (argument < 2) {
      refuse(op_name, argument == 0 ? "a" : "b", " holds integers, which have no tangent");
    }
    const auto term = is_bias(argument)      ? tangents[i]
                      : is_scale_a(argument) ? scaled(inputs, tangents[i], inputs.scale_b)
                                             : scaled(inputs, inputs.scale_a, tangents[i]);
    dz = dz ? mx::add(*dz, term, stream()) : term;
  }
  const auto whole = mx::broadcast_to(*dz, shape_of(primals), stream());
  return {mx::astype(through_activation(inputs, whole), parameters_.dtype, stream())};
}

std::pair<std::vector<mx::array>, std::vector<int>> Int8Matmul::make_vmap(
    const std::vector<mx::array>& inputs, const std::vector<int>& axes
) {
  const bool batched = std::any_of(axes.begin(), axes.end(), [](int axis) { return axis >= 0; });
  const auto stacked = batched ? stack_for_vmap(inputs, axes, stream()) : inputs;
  return {{build(named(stacked), parameters_.activation, parameters_.dtype, stream())}, {batched ? 0 : -1}};
}

mx::array build(const Int8Inputs& inputs, MatmulActivation activation, mx::Dtype dtype, mx::Stream stream) {
  auto list = inputs.list();
  auto shape = Int8Matmul::shape_of(list);
  const Int8Parameters parameters{
      inputs.scale_a.has_value(), inputs.bias.has_value(), inputs.scale_b.has_value(), activation, dtype
  };
  return mx::array(std::move(shape), dtype, std::make_shared<Int8Matmul>(stream, parameters), std::move(list));
}

void check_operand(const char* argument, const mx::array& x) {
  if (x.dtype() != mx::int8) {
    refuse(op_name, argument, " has dtype ", x.dtype(), "; it must be int8");
  }
  const int ndim = static_cast<int>(x.ndim());
  if (ndim < 1 || ndim > max_ndim) {
    refuse(op_name, argument, " has shape ", x.shape(), "; it must have 1 to ", max_ndim, " dimensions");
  }
}

void check_product(const mx::array& a, const mx::array& b) {
  const int K = a.shape(-1);
  if (K != b.shape(-2)) {
    refuse(op_name, "a and b share the dimension K, but it is ", K, " in one and ", b.shape(-2), " in the other");
  }
  if (K > int8_max_k) {
    refuse(op_name, "K is ", K, "; a sum could leave int32 beyond ", int8_max_k);
  }
  for (size_t i = 3; i <= std::min(a.ndim(), b.ndim()); ++i) {
    const int axis = -static_cast<int>(i);
    if (a.shape(axis) != b.shape(axis) && a.shape(axis) != 1 && b.shape(axis) != 1) {
      refuse(op_name, "batch dimensions of a ", a.shape(), " and b ", b.shape(), " do not broadcast");
    }
  }
}

bool is_float(mx::Dtype dtype) {
  return dtype == mx::float32 || dtype == mx::float16 || dtype == mx::bfloat16;
}

// `x` as float32, if it broadcasts to `shape` along its last dimensions.
mx::array check_scale(const char* argument, const mx::array& x, const mx::Shape& shape, mx::Stream s) {
  bool fits = x.ndim() <= shape.size();
  for (size_t i = 1; fits && i <= x.ndim(); ++i) {
    const auto dim = x.shape(-static_cast<int>(i));
    fits = dim == 1 || dim == shape[shape.size() - i];
  }
  if (!fits) {
    refuse(op_name, argument, " has shape ", x.shape(), "; it must broadcast to ", shape);
  }
  return mx::astype(x, mx::float32, s);
}

// The dtype of the result: as asked for, else that of the scales and bias, else int32 for the sums alone.
mx::Dtype result_dtype(
    const std::optional<mx::Dtype>& dtype, const std::vector<mx::array>& floats, MatmulActivation activation
) {
  for (const auto& x : floats) {
    if (!is_float(x.dtype())) {
      refuse(op_name, "scales and bias must be float32, float16 or bfloat16; one is ", x.dtype());
    }
  }
  const bool exact = floats.empty() && activation == MATMUL_ACTIVATION_NONE;
  if (dtype && !is_float(*dtype) && !(exact && *dtype == mx::int32)) {
    refuse(
        op_name,
        "dtype is ",
        *dtype,
        exact ? "; it must be int32, float32, float16 or bfloat16"
              : "; with scales, a bias or an activation it must be float32, float16 or bfloat16"
    );
  }
  return dtype ? *dtype : exact ? mx::int32 : floats.empty() ? mx::float32 : mx::result_type(floats);
}

} // namespace

mx::array int8_matmul(
    const mx::array& a,
    const mx::array& b,
    const std::optional<mx::array>& scale_a,
    const std::optional<mx::array>& scale_b,
    const std::optional<mx::array>& bias,
    const std::optional<std::string>& activation,
    const std::optional<mx::Dtype>& dtype,
    mx::StreamOrDevice stream_or_device
) {
  const auto parsed_activation = parse_activation(op_name, activation);
  check_operand("a", a);
  check_operand("b", b);
  const auto s = mx::to_stream(stream_or_device);
  const bool row = a.ndim() == 1;
  const bool column = b.ndim() == 1;
  Int8Inputs inputs{row ? mx::expand_dims(a, 0, s) : a, column ? mx::expand_dims(b, 1, s) : b, {}, {}, {}};
  check_product(inputs.a, inputs.b);
  std::vector<mx::array> floats;
  for (const auto* optional : {&scale_a, &scale_b, &bias}) {
    if (*optional) {
      floats.push_back(**optional);
    }
  }
  const auto out_dtype = result_dtype(dtype, floats, parsed_activation);
  auto shape = Int8Matmul::shape_of({inputs.a, inputs.b});
  const int N = shape.back();
  if (bias) {
    if (bias->ndim() != 1 || bias->shape(0) != N) {
      refuse(op_name, "bias has shape ", bias->shape(), "; it must be (", N, ",)");
    }
    inputs.bias = mx::astype(*bias, mx::float32, s);
  }
  shape.pop_back(); // [..., M]
  if (scale_a) {
    inputs.scale_a = mx::expand_dims(check_scale("scale_a", *scale_a, shape, s), -1, s);
  }
  shape.back() = N;
  if (scale_b) {
    const auto scale = check_scale("scale_b", *scale_b, shape, s);
    inputs.scale_b = scale.ndim() > 1 ? mx::expand_dims(scale, -2, s) : scale;
  }
  auto out = build(inputs, parsed_activation, out_dtype, s);
  if (row) {
    out = mx::squeeze(out, -2, s);
  }
  return column ? mx::squeeze(out, -1, s) : out;
}

} // namespace tessl
