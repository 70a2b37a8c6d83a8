#pragma once

namespace tessl::cpu {

// Throws what would keep any CPU code from running: a thread count or instruction set that cannot be, or no BLAS
// library. Called where MLX hears of it, before work is queued: what a queued task throws may be lost.
void require_ready();

} // namespace tessl::cpu
