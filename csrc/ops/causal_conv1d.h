#pragma once

#include <optional>
#include <string>
#include <utility>

#include <mlx/array.h>
#include <mlx/utils.h>

namespace mx = mlx::core;

namespace tessl {

// A short convolution of each channel over time: y [B, T, C], and the last K - 1 rows of each row's input.
std::pair<mx::array, mx::array> causal_conv1d(
    const mx::array& x,
    const mx::array& weight,
    const std::optional<mx::array>& state,
    const std::optional<std::string>& activation,
    const std::optional<mx::array>& starts,
    const std::optional<mx::array>& lengths,
    mx::StreamOrDevice stream
);

} // namespace tessl
