#pragma once

#include <vector>

#include <mlx/array.h>
#include <mlx/backend/metal/device.h>

#include "launch/plan.h"

namespace tessl::metal {

// Encodes the launches of a plan; barriers between them are the encoder's, from the arrays each one binds.
void encode(
    const Plan& plan,
    const std::vector<mlx::core::array>& inputs,
    std::vector<mlx::core::array>& outputs,
    mlx::core::metal::Device& device,
    mlx::core::metal::CommandEncoder& encoder
);

} // namespace tessl::metal
