#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include <mlx/array.h>

#include "backends/cpu/matmul.h"
#include "launch/operand.h"
#include "ops/matmul_plan.h"

// What the products share on their way from arrays to a plan or to the CPU.

namespace mx = mlx::core;

namespace tessl {

inline std::optional<Operand> operand_of(const std::optional<mx::array>& array) {
  return array ? std::optional(Operand::of(*array)) : std::nullopt;
}

// Operands of a problem as the CPU reads them, at one member of its batch.
class MemberViews {
 public:
  MemberViews(const MatmulProblem& problem, const std::vector<mx::array>& inputs)
      : problem_(problem), inputs_(inputs), index_(problem.batch_shape) {
    std::fill(index_.begin(), index_.end(), 0);
  }

  cpu::MatrixView operator()(const MatmulOperand& operand) const {
    const auto& array = inputs_[operand.input];
    int64_t offset = 0;
    for (size_t d = 0; d < index_.size(); ++d) {
      offset += index_[d] * operand.batch_strides[d];
    }
    const int64_t bytes = operand.offset - array.offset() + offset * static_cast<int64_t>(array.itemsize());
    return {array.data<char>() + bytes, {operand.row_stride, operand.col_stride}};
  }

  cpu::MatrixView operator()(const std::optional<MatmulOperand>& operand) const {
    return operand ? (*this)(*operand) : cpu::MatrixView{};
  }

  void advance() {
    for (size_t d = index_.size(); d-- > 0 && ++index_[d] == problem_.batch_shape[d];) {
      index_[d] = 0;
    }
  }

 private:
  const MatmulProblem& problem_;
  const std::vector<mx::array>& inputs_;
  FixedVector<int32_t, MATMUL_MAX_BATCH_DIMS> index_;
};

// make(views, out) for every product of the batch, in row-major order of the batch's indices.
template <typename Product, typename Make>
std::vector<Product> products_of_members(
    const MatmulProblem& problem, const std::vector<mx::array>& inputs, mx::array& output, Make make
) {
  const auto matrix_bytes = static_cast<size_t>(problem.M) * problem.N * output.itemsize();
  MemberViews views(problem, inputs);
  std::vector<Product> products;
  products.reserve(problem.batch());
  for (int64_t i = 0; i < problem.batch(); ++i) {
    products.push_back(make(views, output.data<char>() + i * matrix_bytes));
    views.advance();
  }
  return products;
}

} // namespace tessl
