#pragma once

#include <mlx/backend/metal/device.h>

#include "launch/kernel.h"

namespace tessl::metal {

// The library that holds a kernel: the metallib of its capability that was compiled ahead of time, where the build made
// one; else its family, compiled from the packaged source.
MTL::Library* library_of(const Kernel& kernel, mlx::core::metal::Device& device);

} // namespace tessl::metal
