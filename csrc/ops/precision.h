#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tessl {

// Whether float32 operands may be truncated to tf32: by the caller's word, "exact" or "relaxed", or by MLX's own rule,
// MLX_ENABLE_TF32, on by default. Throws std::invalid_argument that begins with `op` in brackets.
bool parse_precision(std::string_view op, const std::optional<std::string>& precision);

} // namespace tessl
