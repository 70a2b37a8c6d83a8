#include "backends/emulator/emulator.h"

#include <stdexcept>

namespace tessl::emulator {

void run(const Plan&, std::span<const Buffer>, std::span<const Buffer>, const Emulation&) {
  throw std::runtime_error("[mlx_tessl.emulate] this build has no emulator");
}

} // namespace tessl::emulator
