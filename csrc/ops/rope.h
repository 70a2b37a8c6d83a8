#pragma once

#include <optional>
#include <utility>

#include <mlx/array.h>
#include <mlx/utils.h>

namespace mx = mlx::core;

namespace tessl {

// Rotates the first rotary_dim columns of x [..., T, D] (all without it) by angles position inv_freq[i], inv_freq
// [rotary_dim / 2]; positions of T, of [B, T] for x [B, ..., T, D], or of one for each row.
mx::array rope(
    const mx::array& x,
    const mx::array& positions,
    const mx::array& inv_freq,
    std::optional<int> rotary_dim,
    bool interleaved,
    mx::StreamOrDevice stream
);

// rope of rms_norm(q, q_weight) and of rms_norm(k, k_weight), for q [..., T, D] and k [..., T, D].
std::pair<mx::array, mx::array> qk_norm_rope(
    const mx::array& q,
    const mx::array& k,
    const mx::array& q_weight,
    const mx::array& k_weight,
    const mx::array& positions,
    const mx::array& inv_freq,
    float eps,
    float weight_offset,
    std::optional<int> rotary_dim,
    mx::StreamOrDevice stream
);

} // namespace tessl
