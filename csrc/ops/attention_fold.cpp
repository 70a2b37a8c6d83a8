#include "ops/attention_fold.h"

#include <mlx/ops.h>

namespace tessl {
namespace {

mx::array with_first(const mx::array& x, int axis, int size, mx::Stream s) {
  auto shape = x.shape();
  shape[axis] = size;
  return mx::broadcast_to(x, shape, s);
}

// [members, batch, ...] as [members * batch, ...].
mx::array folded(const mx::array& x, int axis, int members, mx::Stream s) {
  const auto front = axis >= 0 ? mx::moveaxis(x, axis, 0, s) : with_first(mx::expand_dims(x, 0, s), 0, members, s);
  return mx::flatten(front, 0, 1, s);
}

// A mask that every member and row shares stays as it is.
mx::array folded_mask(mx::array mask, int axis, int members, int batch, mx::Stream s) {
  const auto ndim = static_cast<int>(mask.ndim()) - (axis >= 0 ? 1 : 0);
  if (axis < 0 && (ndim < 4 || mask.shape(0) == 1)) {
    return mask;
  }
  if (axis >= 0) {
    mask = mx::moveaxis(mask, axis, 0, s);
    for (int i = ndim; i < 4; ++i) {
      mask = mx::expand_dims(mask, 1, s);
    }
    return mx::flatten(with_first(mask, 1, batch, s), 0, 1, s);
  }
  return folded(mask, axis, members, s);
}

} // namespace

std::optional<FoldedAttention> fold_into_batch(
    const std::vector<mx::array>& inputs,
    const std::vector<int>& axes,
    const AttentionParameters& parameters,
    mx::Stream stream
) {
  size_t next = 3;
  auto take = [&](bool present) { return present ? static_cast<int>(next++) : -1; };
  const int prefix_k = take(parameters.prefix);
  const int prefix_v = take(parameters.prefix);
  const int mask = take(parameters.mask_kind != AttentionMask::none);
  take(parameters.starts);
  take(parameters.lengths);
  const int sinks = take(parameters.sinks);
  int members = -1;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool has_no_batch =
        static_cast<int>(i) == prefix_k || static_cast<int>(i) == prefix_v || static_cast<int>(i) == sinks;
    if (axes[i] >= 0 && has_no_batch) {
      return std::nullopt;
    }
    members = axes[i] >= 0 ? inputs[i].shape(axes[i]) : members;
  }
  if (members < 0) {
    return std::nullopt;
  }
  const int batch = inputs[0].shape(axes[0] == 0 ? 1 : 0);
  std::vector<mx::array> result;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const int index = static_cast<int>(i);
    if (index == prefix_k || index == prefix_v || index == sinks) {
      result.push_back(inputs[i]);
    } else if (index == mask) {
      result.push_back(folded_mask(inputs[i], axes[i], members, batch, stream));
    } else {
      result.push_back(folded(inputs[i], axes[i], members, stream));
    }
  }
  return FoldedAttention{std::move(result), members};
}

std::vector<mx::array> unfold_batch(const std::vector<mx::array>& outputs, int members, mx::Stream stream) {
  std::vector<mx::array> result;
  for (const auto& output : outputs) {
    result.push_back(mx::unflatten(output, 0, {members, output.shape(0) / members}, stream));
  }
  return result;
}

} // namespace tessl
