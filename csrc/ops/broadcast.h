#pragma once

#include <vector>

#include <mlx/array.h>
#include <mlx/stream.h>

namespace mx = mlx::core;

namespace tessl {

// The sum of x over the axes along which `shape` was broadcast to x's shape: the transpose of broadcasting.
mx::array sum_to_shape(const mx::array& x, const mx::Shape& shape, mx::Stream stream);

// Inputs of a broadcasting op under vmap: every mapped axis (>= 0) becomes axis 0 of a common, higher rank, so that
// broadcasting from the right still lines up; unmapped inputs are left alone.
std::vector<mx::array> stack_for_vmap(
    const std::vector<mx::array>& inputs, const std::vector<int>& axes, mx::Stream stream
);

} // namespace tessl
