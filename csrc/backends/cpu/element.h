#pragma once

#include <cstdint>

namespace tessl::cpu {

enum class Element : uint8_t { float32, float16, bfloat16 };

} // namespace tessl::cpu
