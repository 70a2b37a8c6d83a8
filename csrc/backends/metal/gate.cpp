#include <algorithm>
#include <cstdint>
#include <iostream>
#include <stdexcept>

#include <mlx/allocator.h>
#include <mlx/backend/metal/device.h>
#include <mlx/backend/metal/utils.h>

#include "backends/metal/encode.h"
#include "backends/metal/metal.h"
#include "launch/decimal.h"
#include "launch/self_check.h"
#include "ops/tensorops_checks.h"

namespace mx = mlx::core;

namespace tessl::metal {
namespace {

// The newest of the versions that some rule asks about. The system answers these questions by itself; the version it
// tells as a string is a made-up one to programs that were built with an older SDK, as many Pythons are.
MacosVersion macos_version() {
  if (__builtin_available(macOS 27.0, *)) {
    return {27, 0};
  }
  if (__builtin_available(macOS 26.3, *)) {
    return {26, 3};
  }
  if (__builtin_available(macOS 26.2, *)) {
    return {26, 2};
  }
  if (__builtin_available(macOS 26.0, *)) {
    return {26, 0};
  }
  if (__builtin_available(macOS 15.0, *)) {
    return {15, 0};
  }
  return {14, 0};
}

std::vector<float> as_floats(const mx::array& array) {
  std::vector<float> values(array.size());
  const auto copy = [&]<typename T>(const T* data) {
    std::transform(data, data + array.size(), values.begin(), [](T value) { return static_cast<float>(value); });
  };
  if (array.dtype() == mx::float16) {
    copy(array.data<mx::float16_t>());
  } else if (array.dtype() == mx::bfloat16) {
    copy(array.data<mx::bfloat16_t>());
  } else if (array.dtype() == mx::int32) {
    copy(array.data<int32_t>());
  } else {
    copy(array.data<float>());
  }
  return values;
}

// Runs on an encoder and a queue of its own and waits: the gate may be asked while MLX encodes a primitive, when the
// command buffer of that primitive's stream must not be committed.
std::vector<float> run_alone(
    const Plan& plan, const std::vector<mx::array>& inputs, std::vector<mx::array> outputs, mx::metal::Device& device
) {
  const auto pool = NS::TransferPtr(NS::AutoreleasePool::alloc()->init());
  for (auto& output : outputs) {
    output.set_data(mx::allocator::malloc(output.nbytes()));
  }
  mx::metal::CommandEncoder encoder(device, -1, device.residency_sets());
  encode(plan, inputs, outputs, device, encoder);
  encoder.synchronize();
  return as_floats(outputs[0]);
}

Trust run_check(const TensorOpsCheck& check, const DeviceProfile& profile, mx::metal::Device& device) {
  const auto product = [&](std::span<const float> a, std::span<const float> b) {
    const auto launch = check.make(a, b, check.rows, profile);
    if (!holds_kernel_of(launch.plan, check.capability)) {
      throw std::runtime_error("no tensorops kernel is planned for it");
    }
    const auto out = run_alone(launch.plan, launch.inputs, launch.outputs, device);
    return std::vector<float>(out.end() - check.rows * SelfCheck::N, out.end());
  };
  return check_product(product, check.rows);
}

struct Gate {
  DeviceProfile profile;
  std::string reason;

  explicit Gate(mx::metal::Device& device)
      : profile(profile_from_architecture(device.get_architecture(), macos_version())) {
    if (!profile.has(Capability::tensorops)) {
      reason = "tensorops kernels need GPU generation 17 (18 in phones) and macOS 26.2; this is " + profile.gpu +
               " under macOS " + decimal(profile.macos.major) + "." + decimal(profile.macos.minor) + " or a later one";
      return;
    }
    reason = "the self-check products are exact";
    for (const auto& check : tensorops_checks()) {
      if (runs_on(check, profile)) {
        const auto trust = run_check(check, profile, device);
        if (!trust.trusted) {
          withdraw(check, trust.reason);
        }
      }
    }
  }

 private:
  // One family that is wrong takes all kernels of its library along: they are built alike.
  void withdraw(const TensorOpsCheck& check, const std::string& why) {
    const bool all = check.capability == Capability::tensorops;
    profile.ceiling = all ? Capability::portable : Capability::tensorops;
    reason = std::string(to_string(check.capability)) + " kernels are not trusted on this machine: in " + check.name +
             ", " + why;
    std::cerr << "mlx_tessl: " << reason << "; the " << (all ? "portable" : "tensorops") << " kernels take over"
              << std::endl;
  }
};

const Gate& gate_of(mx::Device device) {
  static const Gate gate(mx::metal::device(device)); // Metal on Apple silicon has one device
  return gate;
}

} // namespace

bool compiled() {
  return true;
}

const DeviceProfile& device_profile(mx::Device device) {
  return gate_of(device).profile;
}

const std::string& tensorops_reason(mx::Device device) {
  return gate_of(device).reason;
}

} // namespace tessl::metal
