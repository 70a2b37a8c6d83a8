#pragma once

#include <mlx/backend/metal/device.h>

#include "launch/plan.h"

namespace tessl::metal {

// The pipeline of a launch's kernel under its function constants; made at the first call, alive as long as the process.
// Throws std::runtime_error when the pipeline cannot run as many threads as the launch asks for.
MTL::ComputePipelineState* pipeline_of(const Launch& launch, mlx::core::metal::Device& device);

} // namespace tessl::metal
