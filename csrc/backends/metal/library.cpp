#include "backends/metal/library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <stdexcept>

#include "launch/source.h"

namespace mx = mlx::core;

namespace tessl::metal {
namespace {

namespace fs = std::filesystem;

// Wheels, editable installs and build trees differ in everything but this: the shaders lie beside our own binary.
const fs::path& binary_directory() {
  static const fs::path directory = [] {
    Dl_info info;
    if (dladdr(reinterpret_cast<const void*>(&binary_directory), &info) == 0) {
      throw std::runtime_error("[mlx_tessl] dladdr cannot tell where the extension was loaded from");
    }
    const std::unique_ptr<char, decltype(&std::free)> path(realpath(info.dli_fname, nullptr), &std::free);
    if (!path) {
      throw std::runtime_error(
          "[mlx_tessl] the extension is no longer where it was loaded from: " + std::string(info.dli_fname)
      );
    }
    return fs::path(path.get()).parent_path();
  }();
  return directory;
}

// MLX keeps libraries by name alone and would hand out an older one of the same name.
std::string registered_name(const std::string& stem, uint64_t hash) {
  return "mlx_tessl_" + stem + "_" + hex(hash);
}

} // namespace

MTL::Library* library_of(const Kernel& kernel, mx::metal::Device& device) {
  const std::string capability = to_string(kernel.capability);
  const auto metallib = binary_directory() / ("mlx_tessl_" + capability + ".metallib");
  if (fs::exists(metallib)) {
    return device.get_library(registered_name(capability, content_hash(metallib.string())), metallib.string());
  }
  const auto kernels = binary_directory() / "kernels";
  if (!fs::exists(kernels / (kernel.family + ".metal"))) {
    throw std::runtime_error(
        "[mlx_tessl] cannot find the shader of " + kernel.name + ": searched " + binary_directory().string() + " for " +
        metallib.filename().string() + " and " + kernels.string() + " for " + kernel.family + ".metal"
    );
  }
  auto source = flatten_shader(kernels, kernel.family);
  return device.get_library(registered_name(kernel.family, source.hash), [&] { return std::move(source.text); });
}

} // namespace tessl::metal
