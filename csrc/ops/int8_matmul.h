#pragma once

#include <optional>
#include <string>

#include <mlx/array.h>
#include <mlx/utils.h>

namespace mx = mlx::core;

namespace tessl {

// a b for int8 a [..., M, K] and b [..., K, N]: exact in int32; or activation(a b scale_a scale_b + bias) in a float
// dtype where any of these is given or `dtype` asks for it. scale_a broadcasts to [..., M], scale_b to [..., N], bias
// is [N]. One-dimensional a and b are a row and a column.
mx::array int8_matmul(
    const mx::array& a,
    const mx::array& b,
    const std::optional<mx::array>& scale_a,
    const std::optional<mx::array>& scale_b,
    const std::optional<mx::array>& bias,
    const std::optional<std::string>& activation,
    const std::optional<mx::Dtype>& dtype,
    mx::StreamOrDevice stream
);

} // namespace tessl
