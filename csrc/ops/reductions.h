#pragma once

#include <mlx/array.h>
#include <mlx/utils.h>

namespace mx = mlx::core;

namespace tessl {

// Over the last dimension: [..., N] to [...].
mx::array row_sum(const mx::array& x, mx::StreamOrDevice stream);
mx::array row_max(const mx::array& x, mx::StreamOrDevice stream);
mx::array logsumexp(const mx::array& x, mx::StreamOrDevice stream);

// exp(x) / sum(exp(x)) over `axis`; a row of minus infinity alone is uniform.
mx::array softmax(const mx::array& x, int axis, mx::StreamOrDevice stream);

// x / max(|x|, eps) over the last dimension.
mx::array l2_normalize(const mx::array& x, float eps, mx::StreamOrDevice stream);

} // namespace tessl
