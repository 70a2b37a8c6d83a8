#include "backends/cpu/blocks.h"

#include <algorithm>

namespace tessl::cpu {
namespace {

// The larger a block, the less of its time packing takes. Sums of 512 x 512 are 1 MiB and stay in L2.
constexpr int64_t max_block_side = 512;
constexpr int64_t alignment = 64;

// Costs are in multiplications, about 1/300 ns each; the least block is worth waking a thread.
constexpr double cost_per_byte = 8;
constexpr double min_block_cost = 3e6;

int64_t part_of(int64_t side, int64_t parts) {
  return ceil_div(ceil_div(side, parts), alignment) * alignment;
}

// The largest sides whose blocks are of like size.
int64_t first_side(int64_t extent) {
  return extent <= max_block_side ? extent : part_of(extent, ceil_div(extent, max_block_side));
}

} // namespace

std::vector<Block> packed_blocks(int64_t M, int64_t N, int64_t K, int element_bytes, int64_t wanted) {
  const double byte_cost = cost_per_byte * element_bytes;
  int64_t rows = first_side(M);
  int64_t columns = first_side(N);
  const auto is_divisible = [&] {
    const auto outputs = static_cast<double>(rows * columns);
    const double cost = (outputs + byte_cost * static_cast<double>(rows + columns)) * static_cast<double>(K);
    return cost >= 2 * min_block_cost && std::max(rows, columns) >= 2 * alignment;
  };
  while (ceil_div(M, rows) * ceil_div(N, columns) < wanted && is_divisible()) {
    int64_t& side = rows > columns ? rows : columns;
    side = part_of(side, 2);
  }
  std::vector<Block> blocks;
  for_each_piece({0, N}, columns, [&](Range column_block) {
    for_each_piece({0, M}, rows, [&](Range row_block) { blocks.push_back({row_block, column_block}); });
  });
  return blocks;
}

} // namespace tessl::cpu
