#include "ops/matmul_plan.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "launch/decimal.h"

namespace tessl {
namespace {

constexpr int64_t int32_limit = std::numeric_limits<int32_t>::max();

// Size and stride of the dimension `d` places before the last. A dimension that is absent or of one element has stride
// 0: what MLX records for it means nothing.
int32_t size_at(const Operand& x, size_t d) {
  return d < x.shape.size() ? x.shape[x.shape.size() - 1 - d] : 1;
}

int64_t stride_at(const Operand& x, size_t d) {
  return size_at(x, d) == 1 ? 0 : x.strides[x.strides.size() - 1 - d];
}

// An operand of the primitive beside its place in the problem, which is null for one that is not read.
struct Pairing {
  const Operand* source;
  MatmulOperand* target;
  bool with_b = false; // b, or a companion of it: the same for all rows of a
};
using Pairings = FixedVector<Pairing, 5 + max_matmul_companions>;

// Batch dimensions are gathered from the innermost outwards.
bool extends_last_dimension(const Pairings& operands, const MatmulProblem& problem, size_t d, int32_t size) {
  if (problem.batch_shape.empty() || int64_t{problem.batch_shape.back()} * size > int32_limit) {
    return false;
  }
  const int64_t inner_size = problem.batch_shape.back();
  return std::all_of(operands.begin(), operands.end(), [&](const Pairing& operand) {
    return !operand.target || stride_at(*operand.source, d) == inner_size * operand.target->batch_strides.back();
  });
}

void add_batch_dimension(const Pairings& operands, MatmulProblem& problem, size_t d, int32_t size) {
  if (problem.batch_shape.size() == problem.batch_shape.capacity()) {
    throw std::invalid_argument(
        "[mlx_tessl.matmul] the operands have more than " + decimal(problem.batch_shape.capacity()) +
        " batch dimensions that do not merge"
    );
  }
  problem.batch_shape.push_back(size);
  for (const auto& operand : operands) {
    if (operand.target) {
      operand.target->batch_strides.push_back(stride_at(*operand.source, d));
    }
  }
}

void gather_batch(const Pairings& operands, MatmulProblem& problem) {
  size_t ndim = 0;
  for (const auto& operand : operands) {
    ndim = std::max(ndim, operand.source->shape.size());
  }
  for (size_t d = 2; d < ndim; ++d) {
    int32_t size = 1;
    for (const auto& operand : operands) {
      if (size_at(*operand.source, d) != 1) {
        size = size_at(*operand.source, d);
      }
    }
    if (size == 1) {
      continue;
    }
    if (extends_last_dimension(operands, problem, d, size)) {
      problem.batch_shape.back() *= size;
    } else {
      add_batch_dimension(operands, problem, d, size);
    }
  }
}

// Whether the innermost batch dimension (the last gathered first) continues the rows of x.
bool continues_rows(const MatmulOperand& x, int32_t M) {
  return M == 1 || x.batch_strides[0] == M * x.row_stride;
}

// Whether the innermost batch dimension can become rows: b and its companions are the same for all its members, and a
// and the addends go on where the rows before left off. A single row of a that is not contiguous stays as it is: it is
// read without a copy as a column of its transpose.
bool batch_folds_into_rows(const Pairings& operands, const MatmulProblem& problem) {
  if (problem.batch_shape.empty() || problem.M == 0 || int64_t{problem.batch_shape[0]} * problem.M > int32_limit) {
    return false;
  }
  const auto& a = problem.a;
  const bool a_stays_readable = problem.M > 1 || a.col_stride == 1 || problem.K <= 1;
  return a.batch_strides[0] != 0 && a_stays_readable &&
         std::all_of(operands.begin(), operands.end(), [&](const Pairing& operand) {
           const auto* target = operand.target;
           const bool shared = operand.with_b && target->batch_strides[0] == 0;
           return !target || shared || (!operand.with_b && continues_rows(*target, problem.M));
         });
}

void fold_batch_into_rows(const Pairings& operands, MatmulProblem& problem) {
  auto drop_first = [](auto& items) {
    auto rest = std::remove_reference_t<decltype(items)>{};
    for (size_t i = 1; i < items.size(); ++i) {
      rest.push_back(items[i]);
    }
    items = rest;
  };
  for (const auto& operand : operands) {
    if (auto* target = operand.target) {
      if (problem.M == 1 && !operand.with_b) {
        target->row_stride = target->batch_strides[0];
      }
      drop_first(target->batch_strides);
    }
  }
  problem.M *= problem.batch_shape[0];
  drop_first(problem.batch_shape);
}

void outermost_first(const Pairings& operands, MatmulProblem& problem) {
  std::reverse(problem.batch_shape.begin(), problem.batch_shape.end());
  for (const auto& operand : operands) {
    if (operand.target) {
      std::reverse(operand.target->batch_strides.begin(), operand.target->batch_strides.end());
    }
  }
}

// Gives a dimension of one element the stride that makes the matrix the easiest to read.
void settle_strides(MatmulOperand& x, int32_t rows, int32_t columns) {
  if (columns <= 1) {
    x.col_stride = x.row_stride == 1 && rows > 1 ? rows : 1;
  }
  if (rows <= 1) {
    x.row_stride = x.col_stride == 1 ? std::max(columns, 1) : 1;
  }
}

MatmulOperand operand_at(uint8_t input, const Operand& x) {
  return {input, x.offset, stride_at(x, 1), stride_at(x, 0), {}};
}

} // namespace

int64_t MatmulProblem::batch() const {
  int64_t members = 1;
  for (int32_t size : batch_shape) {
    members *= size;
  }
  return members;
}

bool MatmulProblem::empty() const {
  return M == 0 || N == 0 || batch() == 0;
}

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
    std::span<const MatmulCompanion> companions
) {
  MatmulProblem problem;
  problem.dtype = dtype;
  problem.M = size_at(a, 1);
  problem.N = size_at(b, 0);
  problem.K = size_at(a, 0);
  problem.epilogue = epilogue;
  problem.relaxed = relaxed;
  problem.batch_invariant = batch_invariant;
  problem.a = operand_at(0, a);
  problem.b = operand_at(1, b);

  Pairings operands{{&a, &problem.a}, {&b, &problem.b, true}};
  uint8_t input = 2;
  auto add = [&](const std::optional<Operand>& x, std::optional<MatmulOperand>& target, bool read) {
    if (x) {
      target = read ? std::optional(operand_at(input, *x)) : std::nullopt;
      operands.push_back({&*x, target ? &*target : nullptr});
      ++input;
    }
  };
  add(c, problem.c, epilogue.beta != 0.0f);
  add(bias, problem.bias, true);
  add(residual, problem.residual, true);
  for (const auto& companion : companions) {
    *companion.target = operand_at(companion.input, companion.source);
    operands.push_back({&companion.source, companion.target, true});
  }

  gather_batch(operands, problem);
  while (batch_folds_into_rows(operands, problem)) {
    fold_batch_into_rows(operands, problem);
  }
  outermost_first(operands, problem);
  settle_strides(problem.a, problem.M, problem.K);
  settle_strides(problem.b, problem.K, problem.N);
  return problem;
}

} // namespace tessl
