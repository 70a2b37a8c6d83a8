#include "ops/activation.h"

#include <cmath>
#include <numbers>
#include <stdexcept>

#include <mlx/ops.h>

namespace tessl {
namespace {

constexpr float sqrt_half = 1.0f / std::numbers::sqrt2_v<float>;

mx::array scalar(float value) {
  return mx::array(value, mx::float32);
}

// silu(z) = z s(z):  s (1 + z (1 - s))
mx::array silu_derivative(const mx::array& z, mx::Stream s) {
  const auto sigmoid = mx::sigmoid(z, s);
  const auto slope = mx::multiply(z, mx::subtract(scalar(1.0f), sigmoid, s), s);
  return mx::multiply(sigmoid, mx::add(scalar(1.0f), slope, s), s);
}

// gelu(z) = z Phi(z):  Phi(z) + z phi(z)
mx::array gelu_derivative(const mx::array& z, mx::Stream s) {
  const auto erf = mx::erf(mx::multiply(z, scalar(sqrt_half), s), s);
  const auto cdf = mx::multiply(scalar(0.5f), mx::add(scalar(1.0f), erf, s), s);
  const auto exponent = mx::multiply(scalar(-0.5f), mx::square(z, s), s);
  const float density_scale = std::numbers::inv_sqrtpi_v<float> * sqrt_half;
  const auto density = mx::multiply(scalar(density_scale), mx::exp(exponent, s), s);
  return mx::add(cdf, mx::multiply(z, density, s), s);
}

// gelu_tanh(z) = z/2 (1 + t), t = tanh(u), u = r (z + q z^3):  (1 + t)/2 + z/2 (1 - t^2) r (1 + 3 q z^2)
mx::array gelu_tanh_derivative(const mx::array& z, mx::Stream s) {
  const float r = std::numbers::inv_sqrtpi_v<float> * std::numbers::sqrt2_v<float>;
  const float q = 0.044715f;
  const auto z2 = mx::square(z, s);
  const auto inner = mx::add(scalar(1.0f), mx::multiply(scalar(q), z2, s), s);
  const auto u = mx::multiply(scalar(r), mx::multiply(z, inner, s), s);
  // tanh is 1 in float32 from 9.02 on; its second derivative in MLX is NaN from 89 on.
  const auto t = mx::tanh(mx::clip(u, scalar(-15.0f), scalar(15.0f), s), s);
  const auto du = mx::multiply(scalar(r), mx::add(scalar(1.0f), mx::multiply(scalar(3.0f * q), z2, s), s), s);
  const auto dt = mx::multiply(mx::subtract(scalar(1.0f), mx::square(t, s), s), du, s);
  const auto sum = mx::add(mx::add(scalar(1.0f), t, s), mx::multiply(z, dt, s), s);
  return mx::multiply(scalar(0.5f), sum, s);
}

} // namespace

MatmulActivation parse_activation(std::string_view op, const std::optional<std::string>& name) {
  if (!name) {
    return MATMUL_ACTIVATION_NONE;
  }
  if (*name == "relu") {
    return MATMUL_ACTIVATION_RELU;
  }
  if (*name == "silu") {
    return MATMUL_ACTIVATION_SILU;
  }
  if (*name == "gelu") {
    return MATMUL_ACTIVATION_GELU;
  }
  if (*name == "gelu_tanh") {
    return MATMUL_ACTIVATION_GELU_TANH;
  }
  throw std::invalid_argument(
      "[" + std::string(op) + "] activation is '" + *name + "'; it must be None, 'relu', 'silu', 'gelu' or 'gelu_tanh'"
  );
}

mx::array activation_derivative(MatmulActivation activation, const mx::array& z, mx::Stream s) {
  const auto z32 = mx::astype(z, mx::float32, s);
  switch (activation) {
    case MATMUL_ACTIVATION_NONE:
      return mx::ones_like(z32, s);
    case MATMUL_ACTIVATION_RELU:
      return mx::astype(mx::greater(z32, scalar(0.0f), s), mx::float32, s);
    case MATMUL_ACTIVATION_SILU:
      return silu_derivative(z32, s);
    case MATMUL_ACTIVATION_GELU:
      return gelu_derivative(z32, s);
    case MATMUL_ACTIVATION_GELU_TANH:
      return gelu_tanh_derivative(z32, s);
  }
  throw std::runtime_error("unknown activation");
}

} // namespace tessl
