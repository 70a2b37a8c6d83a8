#pragma once

#include <optional>
#include <string>

#include <mlx/array.h>
#include <mlx/utils.h>

namespace mx = mlx::core;

namespace tessl {

// Rows `ids` of packed weights [V, D], decoded: [ids..., D]. Negative ids count from the end; an id that is no row
// gives zeros. In the dtype of scales, or bfloat16 in the modes whose scales are codes.
mx::array quantized_embedding(
    const mx::array& ids,
    const mx::array& w,
    const mx::array& scales,
    const std::optional<mx::array>& biases,
    std::optional<int> group_size,
    std::optional<int> bits,
    const std::string& mode,
    mx::StreamOrDevice stream
);

} // namespace tessl
