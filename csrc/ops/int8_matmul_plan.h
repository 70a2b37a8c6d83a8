#pragma once

#include <optional>

#include <mlx/dtype.h>

#include "ops/matmul_plan.h"

namespace tessl {

// A sum of K products of int8 stays within int32 whatever they are: K 128^2 <= 2^31 - 1.
inline constexpr int32_t int8_max_k = 131071;

// a b in int32, or activation(a b scale_a scale_b + bias) in `out`, over a batch.
struct Int8MatmulProblem {
  MatmulProblem product; // of int8; its bias is float32
  std::optional<MatmulOperand> scale_a, scale_b;
  mlx::core::Dtype out = mlx::core::int32;
};

// The primitive's inputs in order: a [..., M, K], b [..., K, N], then those of scale_a, bias, scale_b that are there,
// each of any rank that broadcasts to [..., M, N]. Shapes have been checked.
Int8MatmulProblem make_int8_matmul_problem(
    mlx::core::Dtype out,
    const Operand& a,
    const Operand& b,
    const std::optional<Operand>& scale_a,
    const std::optional<Operand>& bias,
    const std::optional<Operand>& scale_b,
    MatmulActivation activation
);

// One launch, preceded by a copy of each of a and b in which neither stride is 1.
Plan plan_int8_matmul(const Int8MatmulProblem& problem, const DeviceProfile& device);

} // namespace tessl
