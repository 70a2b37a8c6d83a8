#pragma once

#include <mlx/array.h>
#include <mlx/utils.h>

namespace mx = mlx::core;

namespace tessl {

// cache [..., S, D] with x [..., T, D] in rows (position + t) mod S; position is one integer or one for each member of
// the first dimension.
mx::array kv_store(const mx::array& cache, const mx::array& x, const mx::array& position, mx::StreamOrDevice stream);

} // namespace tessl
