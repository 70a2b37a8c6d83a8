#pragma once

#include <cstdint>

#include "launch/gemm_tiles.h"
#include "launch/plan.h"
#include "ops/matmul_plan.h"

// How the operands of a tiled product lie, for the plans of all products with two plain operands.

namespace tessl {

// a or b as a kernel reads it: `lines` lines of `width` contiguous elements, `stride` apart. The lines are the rows of
// the matrix, or its columns where it is transposed.
struct StoredMatrix {
  Argument argument;
  int64_t offset = 0; // bytes from the start of its buffer
  bool transposed = false;
  int32_t lines = 0;
  int32_t width = 0;
  int64_t stride = 0;
  FixedVector<int64_t, MATMUL_MAX_BATCH_DIMS> batch_strides;
};

// a and b where the kernel reads them, and why that kernel is not TensorOps; null when it is.
struct Placement {
  StoredMatrix a;
  StoredMatrix b;
  const char* obstacle = nullptr;
};

// Adds the copies of operands that the kernel cannot read in place.
Placement place_operands(Plan& plan, const MatmulProblem& problem, const DeviceProfile& device);

GemmLayout layout_of(const Placement& operands);

// Whether each four elements along a contiguous line that start at a multiple of four lie on a boundary of four.
bool starts_runs_of_four(const StoredMatrix& x, size_t itemsize);
bool starts_runs_of_four(const MatmulOperand& x, size_t itemsize);

struct Tiling {
  int32_t tiles_m = 0;
  int32_t tiles_n = 0;
  int32_t walk_width = 0;
  int32_t partition_k = 0;
};

// All of MatmulArgs but the addends.
MatmulArgs operand_args(const MatmulProblem& problem, const Placement& operands, const Tiling& tiling);

MatmulAddend addend_args(const std::optional<MatmulOperand>& x);

} // namespace tessl
