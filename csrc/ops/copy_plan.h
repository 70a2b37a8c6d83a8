#pragma once

#include <cstdint>
#include <span>

#include "launch/plan.h"

namespace tessl {

// Appends the launch that writes the view (shape, strides in elements) of `source` row-contiguously to `destination`.
// `source_offset` is where the view starts, in bytes from its buffer: what alignment depends on. Up to 10 dimensions
// longer than 1; elements of 1, 2, 4 or 8 bytes.
void add_copy(
    Plan& plan,
    size_t itemsize,
    const Argument& source,
    int64_t source_offset,
    const Argument& destination,
    std::span<const int32_t> shape,
    std::span<const int64_t> strides
);

} // namespace tessl
