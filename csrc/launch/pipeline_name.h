#pragma once

#include <string>

#include "launch/plan.h"

namespace tessl {

// The name under which MLX keeps the specialisation of a kernel: it keeps pipelines by library and this name alone, so
// that a constant that is missing here would be frozen at its first value.
std::string pipeline_name(const Kernel& kernel, const decltype(Launch::constants)& constants);

} // namespace tessl
