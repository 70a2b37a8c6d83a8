#pragma once

#include "backends/emulator/dispatch.h"

namespace tessl::emulator {

// Holds a dispatch to what the kernel declares: arguments, function constants, threads, threadgroup memory.
// Throws std::runtime_error with the kernel's name and the first thing that is wrong.
void check_contract(const Dispatch& dispatch);

} // namespace tessl::emulator
