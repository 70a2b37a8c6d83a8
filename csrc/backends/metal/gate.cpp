#include <algorithm>
#include <iostream>
#include <stdexcept>

#include <mlx/allocator.h>
#include <mlx/backend/metal/device.h>
#include <mlx/backend/metal/utils.h>

#include "backends/metal/encode.h"
#include "backends/metal/metal.h"
#include "launch/decimal.h"
#include "launch/self_check.h"
#include "ops/matmul_plan.h"

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
  } else {
    copy(array.data<float>());
  }
  return values;
}

// Runs on an encoder and a queue of its own and waits: the gate may be asked while MLX encodes a primitive, when the
// command buffer of that primitive's stream must not be committed.
std::vector<float> run_alone(
    const Plan& plan, const std::vector<mx::array>& inputs, mx::array out, mx::metal::Device& device
) {
  const auto pool = NS::TransferPtr(NS::AutoreleasePool::alloc()->init());
  out.set_data(mx::allocator::malloc(out.nbytes()));
  std::vector<mx::array> outputs{out};
  mx::metal::CommandEncoder encoder(device, -1, device.residency_sets());
  encode(plan, inputs, outputs, device, encoder);
  encoder.synchronize();
  return as_floats(out);
}

Trust check_tensorops(mx::Dtype dtype, const DeviceProfile& profile, mx::metal::Device& device) {
  return check_product([&](std::span<const float> a_values, std::span<const float> b_values) {
    const mx::array a(a_values.data(), {SelfCheck::M, SelfCheck::K}, dtype);
    const mx::array b(b_values.data(), {SelfCheck::K, SelfCheck::N}, dtype);
    const mx::array out({SelfCheck::M, SelfCheck::N}, dtype, nullptr, {});
    const auto problem = make_matmul_problem(
        dtype,
        Operand::of(a),
        Operand::of(b),
        /* c */ {},
        /* bias */ {},
        /* residual */ {},
        MatmulEpilogue{},
        /* relaxed */ true,
        /* batch_invariant */ false
    );
    const auto plan = plan_matmul(problem, profile);
    if (std::ranges::all_of(plan.launches, [](const auto& launch) {
          return launch.kernel->capability == Capability::portable;
        })) {
      throw std::runtime_error("no tensorops kernel is planned for it");
    }
    return run_alone(plan, {a, b}, out, device);
  });
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
    for (const auto dtype : {mx::float16, mx::bfloat16, mx::float32}) {
      const auto trust = check_tensorops(dtype, profile, device);
      reason = trust.reason;
      if (!trust.trusted) {
        withdraw_tensorops(dtype);
        return;
      }
    }
  }

 private:
  void withdraw_tensorops(mx::Dtype dtype) {
    profile.ceiling = Capability::portable;
    reason = "tensorops kernels are not trusted on this machine: in " + mx::type_to_name(dtype) + ", " + reason;
    std::cerr << "mlx_tessl: " << reason << "; the portable kernels take over" << std::endl;
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
