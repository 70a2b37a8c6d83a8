#pragma once

#include <optional>
#include <utility>

#include <mlx/array.h>
#include <mlx/utils.h>

namespace mx = mlx::core;

namespace tessl {

// A norm, and the sum x + residual that it is of when there is a residual.
using NormResult = std::pair<mx::array, std::optional<mx::array>>;

// s / sqrt(mean(s^2) + eps) (weight + weight_offset) over the last dimension of s = x + residual.
NormResult rms_norm(
    const mx::array& x,
    const std::optional<mx::array>& weight,
    float eps,
    const std::optional<mx::array>& residual,
    float weight_offset,
    mx::StreamOrDevice stream
);

// (s - mean(s)) / sqrt(var(s) + eps) weight + bias over the last dimension of s = x + residual.
NormResult layer_norm(
    const mx::array& x,
    const std::optional<mx::array>& weight,
    const std::optional<mx::array>& bias,
    float eps,
    const std::optional<mx::array>& residual,
    mx::StreamOrDevice stream
);

// rms_norm(x, weight, eps) silu(gate).
mx::array gated_rms_norm(
    const mx::array& x, const mx::array& gate, const mx::array& weight, float eps, mx::StreamOrDevice stream
);

} // namespace tessl
