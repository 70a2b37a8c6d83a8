#include "backends/cpu/gates.h"

namespace tessl::cpu {
namespace {

// Columns that stay in L1 from their conversion to their store; a longer row is several items of work.
constexpr int64_t piece = 2048;

} // namespace

void gate(const Gate& gate) {
  const int64_t N = gate.rows.columns;
  const int64_t pieces = (N + piece - 1) / piece;
  for_ranges(gate.rows.count() * pieces, std::min(N, piece), [&](int64_t first, int64_t last) {
    float* scratch = row_scratch(3 * piece);
    const RowsOutput out{gate.out, gate.x.element};
    for (int64_t item = first; item < last; ++item) {
      const int64_t row = item / pieces;
      const int64_t column = item % pieces * piece;
      const int64_t count = std::min(piece, N - column);
      const float* z = gate.gate.read(gate.rows, row, column, count, scratch);
      const float* x = gate.x.read(gate.rows, row, column, count, scratch + piece);
      float* target = out.target(row * N + column, scratch + 2 * piece);
      vector_kernels().rows->gate(gate.function, target, z, x, count);
      out.finish(row * N + column, target, count);
    }
  });
}

} // namespace tessl::cpu
