#pragma once

#include <optional>
#include <string>

#include <mlx/array.h>
#include <mlx/utils.h>

namespace mx = mlx::core;

namespace tessl {

// activation(x W + bias) for x [..., M, K] (or [K], one row) and packed weights: W^T [N, K] when `transpose`, else
// W [K, N]; bias [N]. mode is affine, mxfp4, mxfp8 or nvfp4; group_size and bits default as in MLX.
mx::array quantized_matmul(
    const mx::array& x,
    const mx::array& w,
    const mx::array& scales,
    const std::optional<mx::array>& biases,
    bool transpose,
    std::optional<int> group_size,
    std::optional<int> bits,
    const std::string& mode,
    const std::optional<mx::array>& bias,
    const std::optional<std::string>& activation,
    const std::optional<std::string>& precision,
    mx::StreamOrDevice stream
);

} // namespace tessl
