#include "launch/kernel.h"

#include <mutex>
#include <stdexcept>
#include <unordered_map>

namespace tessl {

const char* to_string(Capability capability) {
  switch (capability) {
    case Capability::portable:
      return "portable";
    case Capability::tensorops:
      return "tensorops";
    case Capability::tensorops27:
      return "tensorops27";
  }
  return "unknown";
}

const Kernel* intern_kernel(std::string_view name, std::string_view family, Capability capability) {
  static std::mutex mutex;
  static std::unordered_map<std::string, Kernel> kernels; // node based: addresses stay
  std::lock_guard lock(mutex);
  auto [entry, is_new] = kernels.try_emplace(std::string(name));
  Kernel& kernel = entry->second;
  if (is_new) {
    kernel = {std::string(name), std::string(family), capability};
  } else if (kernel.family != family || kernel.capability != capability) {
    throw std::runtime_error("kernel " + kernel.name + " is defined twice, in " + kernel.family);
  }
  return &kernel;
}

} // namespace tessl
