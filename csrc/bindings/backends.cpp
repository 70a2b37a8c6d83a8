#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "backends/metal/metal.h"
#include "bindings/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tessl {
namespace {

nb::dict profile_dict(const DeviceProfile& profile) {
  nb::dict values;
  values["gpu"] = profile.gpu;
  values["generation"] = profile.generation;
  values["macos"] = std::to_string(profile.macos.major) + "." + std::to_string(profile.macos.minor);
  values["capability"] = to_string(profile.capability());
  return values;
}

} // namespace

void bind_backends(nb::module_& m) {
  m.def("metal_compiled", &metal::compiled, "Whether this build has the Metal backend.");
  m.def(
      "device_profile",
      [] { return profile_dict(metal::device_profile(mlx::core::Device::gpu)); },
      "The GPU as planning sees it; only where metal_compiled()."
  );
  m.def(
      "tensorops_reason",
      [] { return metal::tensorops_reason(mlx::core::Device::gpu); },
      "Why that GPU has, or has not, the TensorOps kernels; only where metal_compiled()."
  );
  m.def(
      "named_profile",
      [](const std::string& gpu, const std::string& macos) { return profile_dict(make_device_profile(gpu, macos)); },
      "gpu"_a,
      "macos"_a,
      "A named GPU as planning sees it."
  );
}

} // namespace tessl
