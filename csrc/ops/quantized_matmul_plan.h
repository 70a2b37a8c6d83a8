#pragma once

#include <optional>

#include "launch/quantization.h"
#include "ops/matmul_plan.h"

namespace tessl {

// activation(x W + bias) over a batch, W being packed weights [K, N], or the transpose of packed weights [N, K].
struct QuantizedMatmulProblem {
  MatmulProblem product; // of a = x; its b is the packed weights, strides in 32-bit words between their rows and words
  Quantization quantization;
  bool transposed = true;
  MatmulOperand scales;
  std::optional<MatmulOperand> biases; // as long as the quantization is affine
};

// The primitive's inputs in order: x [..., M, K], w [..., rows, words], scales and (when affine) biases
// [..., rows, groups], bias broadcasting to [..., M, N] if there. Shapes have been checked.
QuantizedMatmulProblem make_quantized_matmul_problem(
    mlx::core::Dtype dtype,
    const Operand& x,
    const Operand& w,
    const Operand& scales,
    const std::optional<Operand>& biases,
    const std::optional<Operand>& bias,
    const Quantization& quantization,
    bool transposed,
    MatmulActivation activation,
    bool relaxed
);

// Rows of the packed weights.
int32_t packed_rows(const QuantizedMatmulProblem& problem);

// The kinds of kernels: by vectors, by tiles on simdgroup_matrix, or on the matrix units with weights decoded into
// registers, into threadgroup memory, or by matmul2d itself.
enum class QuantizedKernelKind : uint8_t { vector, portable, direct, staged, native };

// Which kind computes a problem, and why.

struct QuantizedKernelChoice {
  QuantizedKernelKind kind;
  const char* reason;
};

QuantizedKernelChoice choose_quantized_kernel(const QuantizedMatmulProblem& problem, const DeviceProfile& device);

// One launch, preceded by a copy of each operand that is not contiguous along its rows.
Plan plan_quantized_matmul(const QuantizedMatmulProblem& problem, const DeviceProfile& device);

} // namespace tessl
