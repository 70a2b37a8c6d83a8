#pragma once

#include <optional>

#include <mlx/array.h>
#include <mlx/utils.h>

namespace mx = mlx::core;

namespace tessl {

// softmax(scale q k^T) v for q [B, Hq, Tq, D], k [B, Hkv, Tk, D], v [B, Hkv, Tk, Dv]: every query of row b sees the
// first lengths[b] keys. Native on a CPU stream; mx::fast::scaled_dot_product_attention where shaders run.
mx::array attention(
    const mx::array& q,
    const mx::array& k,
    const mx::array& v,
    float scale,
    const std::optional<mx::array>& lengths,
    mx::StreamOrDevice stream
);

} // namespace tessl
