#pragma once

#include <vector>

#include "backends/emulator/dispatch.h"

namespace tessl::emulator {

// Runs dispatches one after the other, on their memory. With `check`, in three orders on guarded copies of it, which
// must agree. Throws std::runtime_error with the findings.
void execute(const std::vector<Dispatch>& dispatches, const Schedule& schedule, bool check);

} // namespace tessl::emulator
