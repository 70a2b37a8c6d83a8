#include <stdexcept>

#include "backends/metal/metal.h"

namespace mx = mlx::core;

namespace tessl::metal {
namespace {

[[noreturn]] void refuse() {
  throw std::runtime_error("[mlx_tessl] this build has no Metal backend: it was made on a system other than macOS");
}

} // namespace

bool compiled() {
  return false;
}

const DeviceProfile& device_profile(mx::Device) {
  refuse();
}

const std::string& tensorops_reason(mx::Device) {
  refuse();
}

void encode(const Plan&, const std::vector<mx::array>&, std::vector<mx::array>&, mx::Stream) {
  refuse();
}

} // namespace tessl::metal
