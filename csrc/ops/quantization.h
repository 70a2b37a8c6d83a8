#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <mlx/array.h>

#include "launch/quantization.h"

namespace mx = mlx::core;

namespace tessl {

const char* to_string(QuantizationMode mode);

// MLX's defaults where bits or group_size is absent: 4 bits in groups of 64, or what the mode prescribes. Throws
// std::invalid_argument that begins with `op` in brackets for a mode, bits or group_size that does not exist.
Quantization parse_quantization(
    std::string_view op, const std::string& mode, std::optional<int> group_size, std::optional<int> bits
);

// Values in a row of packed weights with these scales. Throws std::invalid_argument when w, scales and biases do not
// belong together under the quantization: dtypes, dimensions, sizes.
int check_packed_matrix(
    std::string_view op,
    const Quantization& quantization,
    const mx::array& w,
    const mx::array& scales,
    const std::optional<mx::array>& biases
);

} // namespace tessl
