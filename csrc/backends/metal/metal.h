#pragma once

#include <string>
#include <vector>

#include <mlx/array.h>
#include <mlx/stream.h>

#include "launch/device_profile.h"
#include "launch/plan.h"

namespace tessl::metal {

// Whether this build has the Metal backend (macOS only).
bool compiled();

// The profile of the GPU behind a Metal stream; with tensorops withdrawn when its self-check failed.
const DeviceProfile& device_profile(mlx::core::Device device);

// Why the tensorops kernels are used on this machine, or are not: one sentence without a full stop.
const std::string& tensorops_reason(mlx::core::Device device);

// Encodes the launches of a plan on a Metal stream; `outputs` are allocated. Scratch lives until they complete.
void encode(
    const Plan& plan,
    const std::vector<mlx::core::array>& inputs,
    std::vector<mlx::core::array>& outputs,
    mlx::core::Stream stream
);

} // namespace tessl::metal
