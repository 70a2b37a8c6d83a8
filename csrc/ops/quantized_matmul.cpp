#include "ops/quantized_matmul.h"

#include <algorithm>
#include <stdexcept>

#include <mlx/ops.h>

#include "backends/cpu/quantized_matmul.h"
#include "ops/activation.h"
#include "ops/broadcast.h"
#include "ops/matmul.h"
#include "ops/matmul_members.h"
#include "ops/op.h"
#include "ops/precision.h"
#include "ops/quantization.h"
#include "ops/quantized_matmul_plan.h"
#include "ops/refusal.h"

namespace tessl {
namespace {

constexpr std::string_view op_name = "mlx_tessl.quantized_matmul";
constexpr int max_ndim = MATMUL_MAX_BATCH_DIMS + 2;

// The primitive's inputs by name.
struct QuantizedInputs {
  mx::array x;
  mx::array w;
  mx::array scales;
  std::optional<mx::array> biases;
  std::optional<mx::array> bias;

  static QuantizedInputs from(const std::vector<mx::array>& inputs, bool has_biases, bool has_bias) {
    size_t next = 3;
    auto take = [&](bool present) { return present ? std::optional(inputs[next++]) : std::nullopt; };
    auto biases = take(has_biases);
    auto bias = take(has_bias);
    return {inputs[0], inputs[1], inputs[2], std::move(biases), std::move(bias)};
  }

  std::vector<mx::array> list() const {
    std::vector<mx::array> inputs{x, w, scales};
    for (const auto* optional : {&biases, &bias}) {
      if (*optional) {
        inputs.push_back(**optional);
      }
    }
    return inputs;
  }
};

struct QuantizedParameters {
  Quantization quantization;
  bool transposed = true;
  MatmulActivation activation = MATMUL_ACTIVATION_NONE;
  bool relaxed = false;

  bool operator==(const QuantizedParameters&) const = default;
};

mx::array build(const QuantizedInputs& inputs, const QuantizedParameters& parameters, mx::Stream stream);

// [batch..., M, N], the batch broadcast over all operands.
mx::Shape shape_of(const QuantizedInputs& inputs, const QuantizedParameters& parameters) {
  auto batch_of = [](const mx::array& array) { return mx::Shape(array.shape().begin(), array.shape().end() - 2); };
  auto shape = mx::broadcast_shapes(batch_of(inputs.x), batch_of(inputs.w));
  shape = mx::broadcast_shapes(shape, batch_of(inputs.scales));
  if (inputs.biases) {
    shape = mx::broadcast_shapes(shape, batch_of(*inputs.biases));
  }
  shape.push_back(inputs.x.shape(-2));
  shape.push_back(
      parameters.transposed ? inputs.w.shape(-2) : inputs.scales.shape(-1) * parameters.quantization.group_size
  );
  return inputs.bias ? mx::broadcast_shapes(shape, inputs.bias->shape()) : shape;
}

class QuantizedMatmul : public Op {
 public:
  QuantizedMatmul(mx::Stream stream, const QuantizedParameters& parameters, bool has_bias)
      : Op(stream), parameters_(parameters), has_bias_(has_bias) {
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
    return {shape_of(named(inputs), parameters_)};
  }

  const char* name() const override {
    return "mlx_tessl.quantized_matmul";
  }

 protected:
  Plan plan(
      const std::vector<mx::array>& inputs, const std::vector<mx::array>&, const DeviceProfile& device
  ) const override {
    return plan_quantized_matmul(problem(inputs), device);
  }

  std::function<void()> compute(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) const override {
    const auto call = problem(inputs);
    const auto& product = call.product;
    auto products = products_of_members<cpu::QuantizedMatmul>(
        product, inputs, outputs[0], [&](const MemberViews& view, char* out) -> cpu::QuantizedMatmul {
          const auto words = view(product.b);
          return {
              .dtype = product.dtype,
              .M = product.M,
              .N = product.N,
              .K = product.K,
              .x = view(product.a),
              .w =
                  {.quantization = call.quantization,
                   .values = call.transposed ? product.K : product.N,
                   .words = static_cast<const uint32_t*>(words.data),
                   .word_strides = words.strides,
                   .scales = view(call.scales),
                   .biases = view(call.biases)},
              .transposed = call.transposed,
              .bias = view(product.bias),
              .activation = product.epilogue.activation,
              .out = out,
          };
        }
    );
    return [products = std::move(products)] { cpu::quantized_matmul(products); };
  }

  bool same_parameters(const Op& other) const override {
    const auto& op = static_cast<const QuantizedMatmul&>(other);
    return parameters_ == op.parameters_ && has_bias_ == op.has_bias_;
  }

 private:
  QuantizedInputs named(const std::vector<mx::array>& inputs) const {
    return QuantizedInputs::from(inputs, parameters_.quantization.is_affine(), has_bias_);
  }

  QuantizedMatmulProblem problem(const std::vector<mx::array>& arrays) const {
    const auto inputs = named(arrays);
    return make_quantized_matmul_problem(
        inputs.x.dtype(),
        Operand::of(inputs.x),
        Operand::of(inputs.w),
        Operand::of(inputs.scales),
        operand_of(inputs.biases),
        operand_of(inputs.bias),
        parameters_.quantization,
        parameters_.transposed,
        parameters_.activation,
        parameters_.relaxed
    );
  }

  // x times the weights with these scales and biases, or times their transpose.
  mx::array product(
      const mx::array& x,
      const mx::array& w,
      const mx::array& scales,
      const std::optional<mx::array>& biases,
      bool transposed
  ) {
    QuantizedParameters parameters = parameters_;
    parameters.activation = MATMUL_ACTIVATION_NONE;
    parameters.transposed = transposed;
    return build({x, w, scales, biases, {}}, parameters, stream());
  }

  // activation'(z) times y, where z is what the activation was applied to. z is computed again rather than kept.
  mx::array through_activation(const QuantizedInputs& primals, const mx::array& y) {
    if (parameters_.activation == MATMUL_ACTIVATION_NONE) {
      return y;
    }
    QuantizedParameters parameters = parameters_;
    parameters.activation = MATMUL_ACTIVATION_NONE;
    const auto slope = activation_derivative(parameters_.activation, build(primals, parameters, stream()), stream());
    return mx::astype(mx::multiply(slope, mx::astype(y, mx::float32, stream()), stream()), y.dtype(), stream());
  }

  mx::array gradient_of_weights(const QuantizedInputs& inputs, const mx::array& dz);
  mx::array sum_groups(const mx::array& gradient, const mx::Shape& shape);

  QuantizedParameters parameters_;
  bool has_bias_;
};

// d weights in the shape of the packed rows, [..., N, K] or [..., K, N], in float32: dz^T x or x^T dz.
mx::array QuantizedMatmul::gradient_of_weights(const QuantizedInputs& inputs, const mx::array& dz) {
  const auto s = stream();
  auto x = mx::astype(inputs.x, mx::float32, s);
  auto dy = mx::astype(dz, mx::float32, s);
  // Weights shared by the whole batch: one product over all rows.
  if (inputs.w.ndim() == 2 && inputs.scales.ndim() == 2 && x.ndim() == dy.ndim()) {
    x = mx::flatten(x, 0, -2, s);
    dy = mx::flatten(dy, 0, -2, s);
  }
  const auto& left = parameters_.transposed ? dy : x;
  const auto& right = parameters_.transposed ? x : dy;
  return matmul(mx::swapaxes(left, -1, -2, s), right, {}, 1.0f, 0.0f, {}, {}, "exact", false, s);
}

// The sum over each group of a gradient in the shape of the packed rows, and over the batch dimensions that `shape`,
// that of the scales, was broadcast along.
mx::array QuantizedMatmul::sum_groups(const mx::array& gradient, const mx::Shape& shape) {
  const auto s = stream();
  const auto groups = mx::unflatten(gradient, -1, {shape.back(), parameters_.quantization.group_size}, s);
  return sum_to_shape(mx::sum(groups, -1, false, s), shape, s);
}

std::vector<mx::array> QuantizedMatmul::make_vjp(
    const std::vector<mx::array>& primals,
    const std::vector<mx::array>& cotangents,
    const std::vector<int>& argnums,
    const std::vector<mx::array>&
) {
  const auto s = stream();
  const auto inputs = named(primals);
  const auto& quantization = parameters_.quantization;
  const auto dz = through_activation(inputs, cotangents[0]);
  std::optional<mx::array> dw;
  auto weights_gradient = [&] {
    if (!dw) {
      dw = gradient_of_weights(inputs, dz);
    }
    return *dw;
  };

  std::vector<mx::array> gradients;
  for (int i : argnums) {
    const auto& primal = primals[i];
    if (i == 0) {
      const auto full = product(dz, inputs.w, inputs.scales, inputs.biases, !parameters_.transposed);
      gradients.push_back(sum_to_shape(full, primal.shape(), s));
    } else if (i == 1 || (i == 2 && !quantization.is_affine())) {
      refuse(op_name, i == 1 ? "w" : "scales", " holds codes, which have no gradient");
    } else if (i == 2) {
      // weight = scale * code + bias
      const auto one = mx::ones_like(inputs.scales, s);
      const auto zero = mx::zeros_like(inputs.scales, s);
      const auto codes = mx::dequantize(
          inputs.w,
          mx::astype(one, mx::float32, s),
          mx::astype(zero, mx::float32, s),
          quantization.group_size,
          quantization.bits,
          "affine",
          {},
          {},
          s
      );
      const auto gradient = sum_groups(mx::multiply(weights_gradient(), codes, s), primal.shape());
      gradients.push_back(mx::astype(gradient, primal.dtype(), s));
    } else if (i == 3 && quantization.is_affine()) {
      gradients.push_back(mx::astype(sum_groups(weights_gradient(), primal.shape()), primal.dtype(), s));
    } else {
      gradients.push_back(sum_to_shape(dz, primal.shape(), s));
    }
  }
  return gradients;
}

// The product is linear in x, and, weight = scale * code + bias, in (scales, biases) together.
std::vector<mx::array> QuantizedMatmul::make_jvp(
    const std::vector<mx::array>& primals, const std::vector<mx::array>& tangents, const std::vector<int>& argnums
) {
  const auto s = stream();
  const auto inputs = named(primals);
  const bool affine = parameters_.quantization.is_affine();
  std::optional<mx::array> dz, dscales, dbiases;
  auto accumulate = [&](const mx::array& term) { dz = dz ? mx::add(*dz, term, s) : term; };
  for (size_t i = 0; i < argnums.size(); ++i) {
    const int argument = argnums[i];
    if (argument == 0) {
      accumulate(product(tangents[i], inputs.w, inputs.scales, inputs.biases, parameters_.transposed));
    } else if (argument == 1 || (argument == 2 && !affine)) {
      refuse(op_name, argument == 1 ? "w" : "scales", " holds codes, which have no tangent");
    } else if (argument == 2) {
      dscales = tangents[i];
    } else if (argument == 3 && affine) {
      dbiases = tangents[i];
    } else {
      accumulate(tangents[i]);
    }
  }
  if (dscales || dbiases) {
    const auto zero = mx::zeros_like(inputs.scales, s);
    accumulate(product(inputs.x, inputs.w, dscales.value_or(zero), dbiases.value_or(zero), parameters_.transposed));
  }
  return {through_activation(inputs, mx::broadcast_to(*dz, shape_of(inputs, parameters_), s))};
}

std::pair<std::vector<mx::array>, std::vector<int>> QuantizedMatmul::make_vmap(
    const std::vector<mx::array>& inputs, const std::vector<int>& axes
) {
  const bool batched = std::any_of(axes.begin(), axes.end(), [](int axis) { return axis >= 0; });
  if (!batched) {
    return {{build(named(inputs), parameters_, stream())}, {-1}};
  }
  const auto stacked = stack_for_vmap(inputs, axes, stream());
  return {{build(named(stacked), parameters_, stream())}, {0}};
}

mx::array build(const QuantizedInputs& inputs, const QuantizedParameters& parameters, mx::Stream stream) {
  auto shape = shape_of(inputs, parameters);
  const auto dtype = inputs.x.dtype();
  auto primitive = std::make_shared<QuantizedMatmul>(stream, parameters, inputs.bias.has_value());
  return mx::array(std::move(shape), dtype, std::move(primitive), inputs.list());
}

// The dtype of the result, to which every floating-point operand is promoted.
mx::Dtype check_dtype(const QuantizedInputs& inputs, const Quantization& quantization) {
  std::vector<mx::array> floats{inputs.x};
  if (quantization.is_affine()) {
    floats.push_back(inputs.scales);
    floats.push_back(*inputs.biases);
  }
  if (inputs.bias) {
    floats.push_back(*inputs.bias);
  }
  const auto dtype = mx::result_type(floats);
  if (dtype != mx::float32 && dtype != mx::float16 && dtype != mx::bfloat16) {
    refuse(op_name, "operands promote to ", dtype, "; they must promote to float32, float16 or bfloat16");
  }
  return dtype;
}

void check_x(const mx::array& x, const mx::array& w, bool transpose, int columns) {
  const int ndim = static_cast<int>(x.ndim());
  if (ndim < 1 || ndim > max_ndim) {
    refuse(op_name, "x has shape ", x.shape(), "; it must have 1 to ", max_ndim, " dimensions");
  }
  const int K = transpose ? columns : w.shape(-2);
  if (x.shape(-1) != K) {
    refuse(
        op_name,
        "x has shape ",
        x.shape(),
        "; its last dimension must be ",
        K,
        transpose ? ", that of the unpacked w" : ", the rows of w, for transpose=False"
    );
  }
}

void check_batch(const mx::array& x, const mx::array& w) {
  for (size_t i = 3; i <= std::min(x.ndim(), w.ndim()); ++i) {
    const int axis = -static_cast<int>(i);
    if (x.shape(axis) != w.shape(axis) && x.shape(axis) != 1 && w.shape(axis) != 1) {
      refuse(op_name, "batch dimensions of x ", x.shape(), " and w ", w.shape(), " do not broadcast");
    }
  }
}

QuantizedInputs promote(const QuantizedInputs& inputs, mx::Dtype dtype, bool affine, mx::Stream s) {
  auto cast = [&](const std::optional<mx::array>& array) {
    return array ? std::optional(mx::astype(*array, dtype, s)) : std::nullopt;
  };
  const auto scales = affine ? mx::astype(inputs.scales, dtype, s) : inputs.scales;
  return {mx::astype(inputs.x, dtype, s), inputs.w, scales, cast(inputs.biases), cast(inputs.bias)};
}

} // namespace

mx::array quantized_matmul(
    const mx::array& x,
    const mx::array& w,
    const mx::array& scales,
    const std::optional<mx::array>& biases,
    bool transpose,
    std::optional<int> group_size,
    std::optional<int> bits,
    const std::string& mode,
    const std::optional<mx::array>& bias,
    const std::optional<std::string>& activation,
    const std::optional<std::string>& precision,
    mx::StreamOrDevice stream_or_device
) {
  const auto quantization = parse_quantization(op_name, mode, group_size, bits);
  const auto parsed_activation = parse_activation(op_name, activation);
  const bool relaxed = parse_precision(op_name, precision);
  const int columns = check_packed_matrix(op_name, quantization, w, scales, biases);
  check_x(x, w, transpose, columns);
  if (w.ndim() > max_ndim) {
    refuse(op_name, "w has shape ", w.shape(), "; it must have 2 to ", max_ndim, " dimensions");
  }
  check_batch(x, w);
  const int N = transpose ? w.shape(-2) : columns;
  if (bias && (bias->ndim() != 1 || bias->shape(0) != N)) {
    refuse(op_name, "bias has shape ", bias->shape(), "; it must be (", N, ",)");
  }

  const auto stream = mx::to_stream(stream_or_device);
  const bool row = x.ndim() == 1;
  const QuantizedInputs inputs{row ? mx::expand_dims(x, 0, stream) : x, w, scales, biases, bias};
  const auto dtype = check_dtype(inputs, quantization);
  const QuantizedParameters parameters{quantization, transpose, parsed_activation, relaxed && dtype == mx::float32};
  const auto out = build(promote(inputs, dtype, quantization.is_affine(), stream), parameters, stream);
  return row ? mx::squeeze(out, -2, stream) : out;
}

} // namespace tessl
