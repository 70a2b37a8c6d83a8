#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "launch/kernel.h"

namespace tessl {

struct MacosVersion {
  int major = 0;
  int minor = 0;

  auto operator<=>(const MacosVersion&) const = default;
};

// Where a GPU stands in its generation: the last letter of its architecture name.
enum class GpuClass { phone, base, max, ultra };

// What planning may know of a device. A value: two equal profiles give equal plans.
struct DeviceProfile {
  std::string gpu;    // "m5-pro", or the architecture name that Metal reports, "applegpu_g17s"
  int generation = 0; // 13 M1, 14 M2, 15 M3, 16 M4, 17 M5
  GpuClass gpu_class = GpuClass::base;
  int cores = 10; // of the full part; where only Metal's architecture is known, the most of its class
  MacosVersion macos;
  Capability ceiling = Capability::tensorops27; // lowered when kernels failed their self-check on this machine

  bool operator==(const DeviceProfile&) const = default;

  // The best library this device can load and profit from.
  Capability capability() const;
  bool has(Capability capability) const;
};

// A named device ("m1", "m4-max", "m5", "m5-pro", ...) under a macOS version ("26.4").
// Throws std::invalid_argument naming what is allowed.
DeviceProfile make_device_profile(std::string_view gpu, std::string_view macos);

// The profile of a device from what Metal tells: "applegpu_g17s" and the version of the system.
DeviceProfile profile_from_architecture(std::string_view architecture, MacosVersion macos);

} // namespace tessl
