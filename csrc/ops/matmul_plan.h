#pragma once

#include <optional>
#include <span>

#include <mlx/dtype.h>

#include "kernels/args/matmul.h"
#include "launch/device_profile.h"
#include "launch/fixed_vector.h"
#include "launch/operand.h"
#include "launch/plan.h"

namespace tessl {

struct MatmulEpilogue {
  float alpha = 1.0f;
  float beta = 0.0f;
  MatmulActivation activation = MATMUL_ACTIVATION_NONE;

  bool operator==(const MatmulEpilogue&) const = default;
};

// One operand inside a MatmulProblem: where it stands in the primitive's inputs, and its strides in elements
// (0 where it is broadcast). The batch strides match MatmulProblem::batch_shape.
struct MatmulOperand {
  uint8_t input = 0;
  int64_t offset = 0; // bytes
  int64_t row_stride = 0;
  int64_t col_stride = 0;
  FixedVector<int64_t, MATMUL_MAX_BATCH_DIMS> batch_strides;
};

// activation(alpha a b + beta c + bias) + residual over a batch, after broadcasting and after merging every pair of
// batch dimensions, and a batch dimension with the rows of `a`, that all operands allow.
struct MatmulProblem {
  mlx::core::Dtype dtype = mlx::core::float32;
  int32_t M = 0;
  int32_t N = 0;
  int32_t K = 0;
  FixedVector<int32_t, MATMUL_MAX_BATCH_DIMS> batch_shape;
  MatmulOperand a, b;
  std::optional<MatmulOperand> c, bias, residual; // c is absent when beta is 0
  MatmulEpilogue epilogue;
  bool relaxed = false;         // float32 operands may be truncated to tf32
  bool batch_invariant = false; // a row's bits do not depend on the other rows: the kernel depends on N and K alone

  int64_t batch() const;
  bool empty() const; // no output element
};

// An operand that belongs to b, member by member of the batch, as scales to packed weights. `target` receives where it
// stands in the problem.
struct MatmulCompanion {
  uint8_t input;
  Operand source; // [..., rows, columns]
  MatmulOperand* target;
};
inline constexpr size_t max_matmul_companions = 3;

// The primitive's inputs in order: a [..., M, K], b [..., K, N], then those of c, bias, residual that are there,
// each of any rank that broadcasts to [..., M, N]. Shapes have been checked.
MatmulProblem make_matmul_problem(
    mlx::core::Dtype dtype,
    const Operand& a,
    const Operand& b,
    const std::optional<Operand>& c,
    const std::optional<Operand>& bias,
    const std::optional<Operand>& residual,
    const MatmulEpilogue& epilogue,
    bool relaxed,
    bool batch_invariant,
    std::span<const MatmulCompanion> companions = {}
);

// Why a problem runs on the portable kernels of a device; null when it runs on TensorOps.
const char* tensorops_obstacle(const MatmulProblem& problem, const DeviceProfile& device);

// One launch, or two where K is split, preceded by a copy of each of a and b in which neither stride is 1. Batch
// invariance also copies what would otherwise change the kernel.
Plan plan_matmul(const MatmulProblem& problem, const DeviceProfile& device);

} // namespace tessl
