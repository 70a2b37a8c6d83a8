#pragma once

namespace tessl::cpu {

// CPUs this process may use at once: its affinity mask and its control group's quota (Linux), or the performance cores
// (macOS). At least 1.
int available_cpus();

} // namespace tessl::cpu
