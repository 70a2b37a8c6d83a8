#pragma once

#include <array>
#include <optional>
#include <string>
#include <utility>

#include <mlx/array.h>
#include <mlx/utils.h>

namespace mx = mlx::core;

namespace tessl {

// (a, b, A_log, dt_bias): g = -exp(A_log) softplus(a + dt_bias), beta = sigmoid(b).
using DeltaGates = std::tuple<mx::array, mx::array, mx::array, mx::array>;

// The gated delta rule: y [B, T, Hv, Dv] and the last state [B, Hv, Dv, Dk] float32.
std::pair<mx::array, mx::array> gated_delta(
    const mx::array& q,
    const mx::array& k,
    const mx::array& v,
    const std::optional<mx::array>& g,
    const std::optional<mx::array>& beta,
    const std::optional<mx::array>& state,
    const std::optional<DeltaGates>& gates,
    const std::optional<mx::array>& starts,
    const std::optional<mx::array>& lengths,
    bool normalize_qk,
    const std::optional<std::string>& precision,
    mx::StreamOrDevice stream
);

} // namespace tessl
