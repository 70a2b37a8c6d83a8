#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "backends/cpu/blas.h"
#include "backends/cpu/heap.h"
#include "backends/cpu/onednn.h"
#include "backends/cpu/thread_pool.h"
#include "backends/cpu/vector_kernels.h"
#include "backends/metal/metal.h"
#include "bindings/bindings.h"
#include "launch/decimal.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tessl {
namespace {

nb::dict profile_dict(const DeviceProfile& profile) {
  nb::dict values;
  values["gpu"] = profile.gpu;
  values["generation"] = profile.generation;
  values["macos"] = decimal(profile.macos.major) + "." + decimal(profile.macos.minor);
  values["capability"] = to_string(profile.capability());
  return values;
}

nb::dict use_dict(const cpu::OnednnUse& use) {
  nb::dict values;
  values["used"] = use.used;
  values["reason"] = use.reason;
  return values;
}

} // namespace

void bind_backends(nb::module_& m) {
  cpu::keep_freed_memory();
  m.def("set_blas_library", &cpu::set_blas_library, "path"_a, "Where OpenBLAS is; it is opened at the first product.");
  m.def("blas_description", &cpu::blas_description, "What the BLAS library says of itself. Opens it.");
  m.def("set_onednn_library", &cpu::set_onednn_library, "path"_a, "Where oneDNN is; it is opened when it may be used.");
  m.def(
      "onednn_use",
      [] {
        nb::dict types;
        types["int8"] = use_dict(cpu::onednn_use(cpu::OnednnType::int8));
        types["bfloat16"] = use_dict(cpu::onednn_use(cpu::OnednnType::bfloat16));
        return types;
      },
      "For each type of operands: `used`, whether products go through oneDNN, and the `reason`. Opens it."
  );
  m.def("cpu_threads", [] { return cpu::ThreadPool::instance().size(); }, "Threads of the CPU backend.");
  m.def(
      "cpu_instruction_set",
      [] { return cpu::vector_kernels().instruction_set; },
      "The vector kernels chosen for this CPU."
  );
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
