#include "ops/row_op.h"

#include <algorithm>

#include <mlx/ops.h>
#include <mlx/transforms.h>

#include "ops/broadcast.h"
#include "ops/checks.h"

namespace tessl {
namespace {

Arrays chosen(const Arrays& arrays, const std::vector<int>& indices) {
  Arrays result;
  for (int i : indices) {
    result.push_back(arrays[i]);
  }
  return result;
}

// `f` of the inputs `indices`, the others held fixed.
std::function<Arrays(const Arrays&)> varying(
    std::function<Arrays(const Arrays&)> f, const Arrays& inputs, const std::vector<int>& indices
) {
  return [f = std::move(f), inputs, indices](const Arrays& x) {
    auto all = inputs;
    for (size_t i = 0; i < indices.size(); ++i) {
      all[indices[i]] = x[i];
    }
    return f(all);
  };
}

} // namespace

Arrays RowOp::vjp(const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums, const Arrays&) {
  return mx::vjp(varying(meaning(), primals, argnums), chosen(primals, argnums), cotangents).second;
}

Arrays RowOp::jvp(const Arrays& primals, const Arrays& tangents, const std::vector<int>& argnums) {
  return mx::jvp(varying(meaning(), primals, argnums), chosen(primals, argnums), tangents).second;
}

std::pair<Arrays, std::vector<int>> RowOp::vmap(const Arrays& inputs, const std::vector<int>& axes) {
  const auto is_mapped = [](int axis) { return axis >= 0; };
  const auto rows_end = axes.begin() + static_cast<int64_t>(row_inputs());
  if (std::any_of(rows_end, axes.end(), is_mapped)) {
    const auto outputs = mx::vmap(meaning(), axes)(inputs);
    return {outputs, std::vector<int>(outputs.size(), 0)};
  }
  const bool mapped = std::any_of(axes.begin(), rows_end, is_mapped);
  Arrays rows(inputs.begin(), inputs.begin() + static_cast<int64_t>(row_inputs()));
  auto stacked = stack_for_vmap(rows, {axes.begin(), rows_end}, stream());
  stacked.insert(stacked.end(), inputs.begin() + static_cast<int64_t>(row_inputs()), inputs.end());
  const auto outputs = apply(stacked);
  return {outputs, std::vector<int>(outputs.size(), mapped ? 0 : -1)};
}

mx::Shape broadcast_shape(const Arrays& arrays) {
  mx::Shape shape = arrays[0].shape();
  for (const auto& array : arrays) {
    shape = mx::broadcast_shapes(shape, array.shape());
  }
  return shape;
}

cpu::RowsInput cpu_rows(const mx::array& input, const RowSource& source) {
  return {input.data<char>(), cpu::element_of(input.dtype()), source};
}

void check_rows(std::string_view op, const char* argument, const mx::array& x) {
  if (x.ndim() < 1 || x.ndim() > ROWS_MAX_DIMS + 1) {
    refuse(op, argument, " has shape ", x.shape(), "; it must have 1 to ", ROWS_MAX_DIMS + 1, " dimensions");
  }
  if (x.shape(-1) == 0) {
    refuse(op, argument, " has shape ", x.shape(), "; its rows must not be empty");
  }
}

void check_broadcast(std::string_view op, const char* argument, const mx::array& x, const mx::Shape& shape) {
  const auto& given = x.shape();
  bool fits = given.size() <= shape.size();
  for (size_t i = 1; fits && i <= given.size(); ++i) {
    const auto size = given[given.size() - i];
    fits = size == 1 || size == shape[shape.size() - i];
  }
  if (!fits) {
    refuse(op, argument, " has shape ", given, "; it must broadcast to ", shape);
  }
}

void check_columns(std::string_view op, const char* argument, const std::optional<mx::array>& x, int columns) {
  if (x && x->shape() != mx::Shape{columns}) {
    refuse(op, argument, " has shape ", x->shape(), "; it must be (", columns, ",)");
  }
}

Arrays promote(const Arrays& arrays, mx::Dtype dtype, mx::Stream stream) {
  Arrays promoted;
  for (const auto& array : arrays) {
    promoted.push_back(mx::astype(array, dtype, stream));
  }
  return promoted;
}

Arrays make_outputs(std::shared_ptr<Op> primitive, mx::Dtype dtype, Arrays inputs) {
  const auto shapes = primitive->output_shapes(inputs);
  return mx::array::make_arrays(shapes, std::vector<mx::Dtype>(shapes.size(), dtype), primitive, inputs);
}

} // namespace tessl
