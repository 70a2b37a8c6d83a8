#pragma once

#include <cstdint>
#include <vector>

#include "backends/cpu/pieces.h"

namespace tessl::cpu {

struct Block {
  Range rows, columns;
};

// Blocks of an output [M, N], each for one thread, which packs its rows of a and columns of b, of so many bytes an
// element: `wanted` of them where the product is large enough. The cut depends on shapes alone, so that the number of
// threads does not show in the result.
std::vector<Block> packed_blocks(int64_t M, int64_t N, int64_t K, int element_bytes, int64_t wanted);

} // namespace tessl::cpu
