#include "ops/row_op.h"

#include <algorithm>

#include <mlx/ops.h>
#include <mlx/transforms.h>

#include "ops/broadcast.h"
#include "ops/checks.h"
#include "ops/varying.h"

namespace tessl {
namespace {

// x for each of `members`, as a view: axis 0 of an array of `ndim` dimensions.
mx::array repeated(const mx::array& x, int members, size_t ndim, mx::Stream s) {
  mx::Shape shape(ndim - x.ndim(), 1);
  shape[0] = members;
  shape.insert(shape.end(), x.shape().begin(), x.shape().end());
  return mx::broadcast_to(x, shape, s);
}

bool is_mapped(int axis) {
  return axis >= 0;
}

bool is_empty(const mx::Shape& shape) {
  return std::find(shape.begin(), shape.end(), 0) != shape.end();
}

bool all_empty(const Arrays& arrays) {
  return std::all_of(arrays.begin(), arrays.end(), [](const auto& array) { return array.size() == 0; });
}

} // namespace

// Derivatives of nothing are zeros. MLX's sum over an empty axis of a strided array never ends on a CPU, and some of
// its ops refuse an empty array.
Arrays RowOp::make_vjp(
    const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums, const Arrays&
) {
  if (all_empty(cotangents)) {
    Arrays zeros;
    for (int i : argnums) {
      zeros.push_back(mx::zeros_like(primals[i], stream()));
    }
    return zeros;
  }
  return mx::vjp(varying(meaning(), primals, argnums), chosen(primals, argnums), cotangents).second;
}

Arrays RowOp::make_jvp(const Arrays& primals, const Arrays& tangents, const std::vector<int>& argnums) {
  const auto shapes = output_shapes(primals);
  if (std::all_of(shapes.begin(), shapes.end(), is_empty)) {
    Arrays zeros;
    for (const auto& shape : shapes) {
      zeros.push_back(mx::zeros(shape, tangents[0].dtype(), stream()));
    }
    return zeros;
  }
  return mx::jvp(varying(meaning(), primals, argnums), chosen(primals, argnums), tangents).second;
}

std::pair<Arrays, std::vector<int>> RowOp::make_vmap(const Arrays& inputs, const std::vector<int>& axes) {
  const auto rows_end = axes.begin() + static_cast<int64_t>(row_inputs());
  if (std::any_of(rows_end, axes.end(), is_mapped)) {
    const auto outputs = mx::vmap(meaning(), axes)(inputs);
    return {outputs, std::vector<int>(outputs.size(), 0)};
  }
  const auto rows_count = static_cast<int64_t>(row_inputs());
  auto rows = stack_rows({inputs.begin(), inputs.begin() + rows_count}, {axes.begin(), rows_end}, stream());
  if (!rows) {
    const auto outputs = apply(inputs);
    return {outputs, std::vector<int>(outputs.size(), -1)};
  }
  rows->insert(rows->end(), inputs.begin() + rows_count, inputs.end());
  const auto outputs = apply(*rows);
  return {outputs, std::vector<int>(outputs.size(), 0)};
}

std::optional<Arrays> stack_rows(const Arrays& rows, const std::vector<int>& axes, mx::Stream stream) {
  const auto mapped = std::find_if(axes.begin(), axes.end(), is_mapped);
  if (mapped == axes.end()) {
    return std::nullopt;
  }
  const auto first = static_cast<size_t>(mapped - axes.begin());
  auto stacked = stack_for_vmap(rows, axes, stream);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!is_mapped(axes[i])) {
      stacked[i] = repeated(stacked[i], rows[first].shape(*mapped), stacked[first].ndim(), stream);
    }
  }
  return stacked;
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

mx::array mean_of_columns(const mx::array& x, mx::Stream stream) {
  const auto sums = mx::sum(x, -1, /* keepdims = */ true, stream);
  return mx::multiply(sums, mx::array(1.0f / static_cast<float>(x.shape(-1))), stream);
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
