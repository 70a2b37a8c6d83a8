#pragma once

#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "backends/cpu/rows.h"
#include "launch/rows.h"
#include "ops/op.h"

namespace tessl {

// An op over rows, whose derivatives are those of its meaning in stock MLX ops. Its first inputs are rows: arrays that
// broadcast from the right to one shape; the others serve all rows.
class RowOp : public Op {
 public:
  using Op::Op;

  Arrays make_vjp(
      const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums, const Arrays&
  ) override;
  Arrays make_jvp(const Arrays& primals, const Arrays& tangents, const std::vector<int>& argnums) final;

  // Mapped rows are more rows of the same op; where another input is mapped it is the meaning that is mapped.
  std::pair<Arrays, std::vector<int>> make_vmap(const Arrays& inputs, const std::vector<int>& axes) final;

 protected:
  using Meaning = std::function<Arrays(const Arrays&)>;

  // The outputs in stock ops. Outlives the primitive.
  virtual Meaning meaning() = 0;

  // How many of the first inputs are rows.
  virtual size_t row_inputs() const = 0;

  // The same op, of the same parameters, on other inputs.
  virtual Arrays apply(const Arrays& inputs) = 0;
};

// Rows under vmap: every mapped axis (>= 0) becomes axis 0, and rows that are not mapped are repeated along it, as
// views. Nothing when no axis is mapped.
std::optional<Arrays> stack_rows(const Arrays& rows, const std::vector<int>& axes, mx::Stream stream);

// The shape to which arrays broadcast, for the dimensions that rows have.
mx::Shape broadcast_shape(const Arrays& arrays);

// Rows that share a shape, as the CPU reads them: the data of `inputs`, by the strides of `rows`.
cpu::RowsInput cpu_rows(const mx::array& input, const RowSource& source);

// The mean of each row, [..., 1]. Not mx::mean, whose count of elements has no jvp within a shapeless compile.
mx::array mean_of_columns(const mx::array& x, mx::Stream stream);

// 1 to ROWS_MAX_DIMS + 1 dimensions, and a last one that is not empty.
void check_rows(std::string_view op, const char* argument, const mx::array& x);

// `x` must broadcast to `shape`.
void check_broadcast(std::string_view op, const char* argument, const mx::array& x, const mx::Shape& shape);

// One value for each column.
void check_columns(std::string_view op, const char* argument, const std::optional<mx::array>& x, int columns);

Arrays promote(const Arrays& arrays, mx::Dtype dtype, mx::Stream stream);

// Builds the outputs of one primitive, all of `dtype`.
Arrays make_outputs(std::shared_ptr<Op> primitive, mx::Dtype dtype, Arrays inputs);

} // namespace tessl
