#pragma once

#include <optional>
#include <string>

#include <mlx/array.h>
#include <mlx/utils.h>

namespace mx = mlx::core;

namespace tessl {

// activation(alpha a@b + beta c + bias) for a [..., M, K], b [..., K, N], c broadcast to [..., M, N], bias [N].
// One-dimensional a and b are a row and a column, as in mx::matmul. activation is none, relu, silu, gelu or gelu_tanh;
// precision is none, exact or relaxed.
mx::array matmul(
    const mx::array& a,
    const mx::array& b,
    const std::optional<mx::array>& c,
    float alpha,
    float beta,
    const std::optional<mx::array>& bias,
    const std::optional<std::string>& activation,
    const std::optional<std::string>& precision,
    bool batch_invariant,
    mx::StreamOrDevice stream
);

// activation(x @ weight.T + bias) + residual for x [..., K], weight [N, K], bias [N], residual [..., N].
mx::array linear(
    const mx::array& x,
    const mx::array& weight,
    const std::optional<mx::array>& bias,
    const std::optional<std::string>& activation,
    const std::optional<mx::array>& residual,
    const std::optional<std::string>& precision,
    bool batch_invariant,
    mx::StreamOrDevice stream
);

} // namespace tessl
