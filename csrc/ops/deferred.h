#pragma once

#include <functional>
#include <vector>

#include <mlx/array.h>
#include <mlx/stream.h>

namespace mx = mlx::core;

namespace tessl {

// Whether what is being built is traced by a shapeless compile: shapes are then those of an example.
bool shapes_may_change();

using Builder = std::function<std::vector<mx::array>(const std::vector<mx::array>&)>;

// build(inputs). While shapes may change it is a primitive that builds anew for the shapes it is evaluated with: no
// shape of the example stays in the graph, as it would in constants and in reductions that had nothing to reduce.
// Which outputs there are, and their dtypes, must not depend on shapes. `build` outlives the call.
std::vector<mx::array> when_shapes_are_known(const std::vector<mx::array>& inputs, Builder build, mx::Stream stream);

} // namespace tessl
