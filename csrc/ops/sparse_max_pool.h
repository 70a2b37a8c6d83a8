#pragma once

#include <optional>
#include <string>

#include <mlx/array.h>
#include <mlx/utils.h>

namespace mx = mlx::core;

namespace tessl {

// [B, V]: the pooling of f(hidden[b, t] . weight[v] + bias[v]) over the first lengths[b] tokens of hidden [B, T, H],
// weight [V, H]; f(x) = log(1 + relu(x)) or log(1 + log(1 + relu(x))), the pooling "max" or "sum". No token gives 0.
mx::array sparse_max_pool(
    const mx::array& hidden,
    const mx::array& weight,
    const std::optional<mx::array>& bias,
    const std::optional<mx::array>& lengths,
    const std::string& activation,
    const std::string& pooling,
    const std::optional<std::string>& precision,
    mx::StreamOrDevice stream
);

} // namespace tessl
