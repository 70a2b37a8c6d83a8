#pragma once

#include <mlx/array.h>
#include <mlx/utils.h>

namespace mx = mlx::core;

namespace tessl {

// [S, N]: the means of rows starts[s], ..., starts[s] + lengths[s] - 1 of x [R, N], of those that there are; zeros for
// none. starts [S] and lengths [S] are integers.
mx::array segment_mean(
    const mx::array& x, const mx::array& starts, const mx::array& lengths, mx::StreamOrDevice stream
);

} // namespace tessl
