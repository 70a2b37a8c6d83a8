#pragma once

#include <span>

#include "backends/cpu/matmul.h"

namespace tessl::cpu {

// Whether a product is large enough, and not too long, for its operands to be packed as a whole.
bool is_tiled(const Matmul& product);

// Computes products that are tiled. All threads pack b once, as float32, and a too unless its rows are float32 already;
// then they share the blocks of the output. BLAS, with a block a call, packs the operands again for each block.
void tiled_matmul(std::span<const Matmul> products);

} // namespace tessl::cpu
