#pragma once

#include <span>
#include <vector>

#include <mlx/array.h>

#include "launch/device_profile.h"
#include "launch/plan.h"

namespace mx = mlx::core;

namespace tessl {

// A product as a device runs it; outputs have shape and dtype and no memory, and the product stands at the end of the
// first.
struct CheckedLaunch {
  Plan plan;
  std::vector<mx::array> inputs;
  std::vector<mx::array> outputs;
};

// A family of TensorOps kernels and how it computes the product of csrc/launch/self_check.h: a family joins by an
// entry of tensorops_checks.cpp.
struct TensorOpsCheck {
  const char* name;
  Capability capability; // which a wrong product withdraws
  int rows;              // of a
  CheckedLaunch (*make)(std::span<const float> a, std::span<const float> b, int rows, const DeviceProfile& device);
};

std::span<const TensorOpsCheck> tensorops_checks();

// Those that `device` can run, in order. Each plan must hold a kernel of the check's capability, or is a mistake.
bool runs_on(const TensorOpsCheck& check, const DeviceProfile& device);
bool holds_kernel_of(const Plan& plan, Capability capability);

} // namespace tessl
