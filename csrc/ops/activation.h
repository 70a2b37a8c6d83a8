#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <mlx/array.h>
#include <mlx/stream.h>

#include "kernels/args/matmul.h"

namespace mx = mlx::core;

namespace tessl {

// The activation of this name; nullopt is none. Throws std::invalid_argument that begins with `op` in brackets.
MatmulActivation parse_activation(std::string_view op, const std::optional<std::string>& name);

// d activation(z) / dz, in float32.
mx::array activation_derivative(MatmulActivation activation, const mx::array& z, mx::Stream stream);

} // namespace tessl
