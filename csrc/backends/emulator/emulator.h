#pragma once

#include <cstddef>
#include <span>

#include "launch/emulation.h"
#include "launch/plan.h"

namespace tessl::emulator {

// The memory of one array: `nbytes` from its first element on, and `before` bytes ahead of it (negative strides).
struct Buffer {
  void* data = nullptr;
  size_t nbytes = 0;
  size_t before = 0;
};

// Runs the launches of a plan on the CPU, from the shaders' own source. Called from a CPU stream's thread, without the
// Python lock. Throws std::runtime_error with the kernel's name and the finding when a check fails.
void run(const Plan& plan, std::span<const Buffer> inputs, std::span<const Buffer> outputs, const Emulation& emulation);

} // namespace tessl::emulator
