#include <stdexcept>
#include "backends/emulator/emulator.h"
namespace tessl::emulator { void run(const Plan&, std::span<const Buffer>, std::span<const Buffer>, const Emulation&) { throw std::runtime_error("no emulator"); } }
