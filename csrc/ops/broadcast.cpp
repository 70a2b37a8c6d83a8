#include "ops/broadcast.h"

#include <algorithm>

#include <mlx/ops.h>

namespace tessl {

mx::array sum_to_shape(const mx::array& x, const mx::Shape& shape, mx::Stream stream) {
  const int leading = static_cast<int>(x.ndim() - shape.size());
  std::vector<int> axes;
  std::vector<int> leading_axes;
  for (int i = 0; i < static_cast<int>(x.ndim()); ++i) {
    const bool added = i < leading;
    if (added || (shape[i - leading] == 1 && x.shape(i) != 1)) {
      axes.push_back(i);
    }
    if (added) {
      leading_axes.push_back(i);
    }
  }
  if (axes.empty()) {
    return x;
  }
  const auto sums = mx::sum(x, axes, /* keepdims = */ true, stream);
  return leading_axes.empty() ? sums : mx::squeeze(sums, leading_axes, stream);
}

std::vector<mx::array> stack_for_vmap(
    const std::vector<mx::array>& inputs, const std::vector<int>& axes, mx::Stream stream
) {
  size_t ndim = 0; // of one element of the map
  for (size_t i = 0; i < inputs.size(); ++i) {
    ndim = std::max(ndim, inputs[i].ndim() - (axes[i] >= 0 ? 1 : 0));
  }
  std::vector<mx::array> stacked;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (axes[i] < 0) {
      stacked.push_back(inputs[i]);
      continue;
    }
    const auto front = mx::moveaxis(inputs[i], axes[i], 0, stream);
    std::vector<int> singletons(ndim + 1 - front.ndim());
    for (size_t j = 0; j < singletons.size(); ++j) {
      singletons[j] = static_cast<int>(j) + 1;
    }
    stacked.push_back(singletons.empty() ? front : mx::expand_dims(front, singletons, stream));
  }
  return stacked;
}

} // namespace tessl
