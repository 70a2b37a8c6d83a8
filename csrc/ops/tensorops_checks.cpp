#include "ops/tensorops_checks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "launch/self_check.h"
#include "ops/gated_delta_plan.h"
#include "ops/int8_matmul_plan.h"
#include "ops/matmul_plan.h"
#include "ops/quantized_matmul_plan.h"

namespace tessl {
namespace {

using Floats = std::span<const float>;
constexpr int N = SelfCheck::N;
constexpr int K = SelfCheck::K;

mx::array output(int rows, mx::Dtype dtype) {
  return mx::array({rows, N}, dtype, nullptr, {});
}

CheckedLaunch plain(Floats a, Floats b, int rows, const DeviceProfile& device, mx::Dtype dtype) {
  std::vector<mx::array> inputs{mx::array(a.data(), {rows, K}, dtype), mx::array(b.data(), {K, N}, dtype)};
  const auto problem = make_matmul_problem(
      dtype,
      Operand::of(inputs[0]),
      Operand::of(inputs[1]),
      /* c */ {},
      /* bias */ {},
      /* residual */ {},
      MatmulEpilogue{},
      /* relaxed */ true,
      /* batch_invariant */ false
  );
  return {plan_matmul(problem, device), std::move(inputs), {output(rows, dtype)}};
}

CheckedLaunch int8(Floats a, Floats b, int rows, const DeviceProfile& device) {
  std::vector<mx::array> inputs{mx::array(a.data(), {rows, K}, mx::int8), mx::array(b.data(), {K, N}, mx::int8)};
  const auto problem = make_int8_matmul_problem(
      mx::int32,
      Operand::of(inputs[0]),
      Operand::of(inputs[1]),
      /* scale_a */ {},
      /* bias */ {},
      /* scale_b */ {},
      MATMUL_ACTIVATION_NONE
  );
  return {plan_int8_matmul(problem, device), std::move(inputs), {output(rows, mx::int32)}};
}

// The transpose of b, each element's code in `bits` bits, the first in the lowest.
std::vector<uint32_t> packed_codes(Floats b, int bits, uint32_t (*code)(float)) {
  const int values_a_word = 32 / bits;
  std::vector<uint32_t> words(static_cast<size_t>(N) * K / values_a_word);
  for (int n = 0; n < N; ++n) {
    for (int k = 0; k < K; ++k) {
      const int value = n * K + k;
      words[value / values_a_word] |= code(b[k * N + n]) << (value % values_a_word * bits);
    }
  }
  return words;
}

CheckedLaunch quantized(
    const Quantization& quantization, std::vector<mx::array> inputs, int rows, const DeviceProfile& device
) {
  const auto dtype = inputs[0].dtype();
  const auto problem = make_quantized_matmul_problem(
      dtype,
      Operand::of(inputs[0]),
      Operand::of(inputs[1]),
      Operand::of(inputs[2]),
      inputs.size() > 3 ? std::optional(Operand::of(inputs[3])) : std::nullopt,
      /* bias */ {},
      quantization,
      /* transposed */ true,
      MATMUL_ACTIVATION_NONE,
      /* relaxed */ true
  );
  return {plan_quantized_matmul(problem, device), std::move(inputs), {output(rows, dtype)}};
}

// Affine codes of 4 bits: an integer from -2 on is its code minus 2.
CheckedLaunch affine(Floats a, Floats b, int rows, const DeviceProfile& device, mx::Dtype dtype) {
  const auto words = packed_codes(b, 4, [](float x) { return static_cast<uint32_t>(static_cast<int>(x) + 2); });
  const std::vector<float> scales(N, 1.0f);
  const std::vector<float> biases(N, -2.0f);
  const Quantization quantization{QUANTIZATION_AFFINE, 4, K};
  return quantized(
      quantization,
      {mx::array(a.data(), {rows, K}, dtype),
       mx::array(words.data(), {N, K / 8}, mx::uint32),
       mx::array(scales.data(), {N, 1}, dtype),
       mx::array(biases.data(), {N, 1}, dtype)},
      rows,
      device
  );
}

// e4m3: sign, 4 bits of exponent with bias 7, 3 of mantissa.
uint32_t e4m3(float x) {
  const uint32_t magnitude = x == 0.0f ? 0u : std::fabs(x) == 1.0f ? 0x38u : 0x40u;
  return magnitude | (x < 0.0f ? 0x80u : 0u);
}

CheckedLaunch mxfp8(Floats a, Floats b, int rows, const DeviceProfile& device) {
  constexpr int group = 32;
  constexpr uint8_t one = 127; // 2^0 as e8m0
  const auto words = packed_codes(b, 8, e4m3);
  const std::vector<uint8_t> scales(N * K / group, one);
  const Quantization quantization{QUANTIZATION_MXFP8, 8, group};
  return quantized(
      quantization,
      {mx::array(a.data(), {rows, K}, mx::float16),
       mx::array(words.data(), {N, K / 4}, mx::uint32),
       mx::array(scales.data(), {N, K / group}, mx::uint8)},
      rows,
      device
  );
}

// K tokens write b into the state, one row each: token j has the j-th unit vector as its key and row j of b as its
// value. `rows` tokens read it, with the rows of a as their queries, and neither they nor decays change it.
CheckedLaunch delta_rule(Floats a, Floats b, int rows, const DeviceProfile& device, mx::Dtype dtype) {
  const int T = K + rows;
  std::vector<float> q(static_cast<size_t>(T) * K);
  std::vector<float> k(q.size());
  std::vector<float> v(static_cast<size_t>(T) * N);
  std::vector<float> beta(T);
  for (int j = 0; j < K; ++j) {
    k[j * K + j] = 1.0f;
    beta[j] = 1.0f;
  }
  std::copy(a.begin(), a.end(), q.begin() + K * K);
  std::copy(b.begin(), b.end(), v.begin());
  std::vector<mx::array> inputs{
      mx::array(q.data(), {1, T, 1, K}, dtype),
      mx::array(k.data(), {1, T, 1, K}, dtype),
      mx::array(v.data(), {1, T, 1, N}, dtype),
      mx::array(std::vector<float>(T).data(), {1, T, 1}, mx::float32),
      mx::array(beta.data(), {1, T, 1}, mx::float32)
  };
  GatedDeltaProblem problem;
  problem.dtype = dtype;
  problem.form.relaxed = true;
  problem.q = Operand::of(inputs[0]);
  problem.k = Operand::of(inputs[1]);
  problem.v = Operand::of(inputs[2]);
  problem.g = Operand::of(inputs[3]);
  problem.beta = Operand::of(inputs[4]);
  return {
      plan_gated_delta(problem, device),
      std::move(inputs),
      {mx::array({1, T, 1, N}, dtype, nullptr, {}), mx::array({1, 1, N, K}, mx::float32, nullptr, {})}
  };
}

template <CheckedLaunch (*make)(Floats, Floats, int, const DeviceProfile&, mx::Dtype), mx::Dtype const& dtype>
CheckedLaunch of_dtype(Floats a, Floats b, int rows, const DeviceProfile& device) {
  return make(a, b, rows, device, dtype);
}

// Rows of x with which quantized_matmul takes tiles rather than vectors, and those that decode into registers or into
// threadgroup memory.
constexpr int direct_rows = 48;
constexpr int staged_rows = 80;

constexpr auto tensorops = Capability::tensorops;

} // namespace

std::span<const TensorOpsCheck> tensorops_checks() {
  static const std::array checks{
      TensorOpsCheck{"matmul in float16", tensorops, self_check_rows, of_dtype<plain, mx::float16>},
      TensorOpsCheck{"matmul in bfloat16", tensorops, self_check_rows, of_dtype<plain, mx::bfloat16>},
      TensorOpsCheck{"matmul in relaxed float32", tensorops, self_check_rows, of_dtype<plain, mx::float32>},
      TensorOpsCheck{"int8_matmul", tensorops, self_check_rows, int8},
      TensorOpsCheck{"quantized_matmul by registers", tensorops, direct_rows, of_dtype<affine, mx::bfloat16>},
      TensorOpsCheck{"quantized_matmul by staged blocks", tensorops, staged_rows, of_dtype<affine, mx::float16>},
      TensorOpsCheck{"gated_delta by chunks", tensorops, self_check_rows, of_dtype<delta_rule, mx::bfloat16>},
      TensorOpsCheck{"quantized_matmul of mxfp8", Capability::tensorops27, direct_rows, mxfp8},
  };
  return checks;
}

bool runs_on(const TensorOpsCheck& check, const DeviceProfile& device) {
  return device.has(check.capability);
}

bool holds_kernel_of(const Plan& plan, Capability capability) {
  return std::any_of(plan.launches.begin(), plan.launches.end(), [&](const Launch& launch) {
    return launch.kernel->capability == capability;
  });
}

} // namespace tessl
