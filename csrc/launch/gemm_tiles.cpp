#include "launch/gemm_tiles.h"

#include <algorithm>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>

#include "launch/decimal.h"

namespace tessl {
namespace {

// A tile is taken by the first rule of its table that applies.
struct TileRule {
  bool (*applies)(const GemmShape& shape, const DeviceProfile& device);
  GemmTileChoice choice;
};

int64_t threadgroups(const GemmShape& shape, const GemmTile& tile) {
  return int64_t{tile_count(shape.M, tile.m)} * tile_count(shape.N, tile.n) * shape.batch;
}

// A core works on one threadgroup at least: fewer leave cores idle.
bool leaves_cores_idle(const GemmShape& shape, const GemmTile& tile, const DeviceProfile& device) {
  return !shape.batch_invariant && threadgroups(shape, tile) < device.cores;
}

bool rows_at_most(const GemmShape& shape, int32_t rows) {
  return !shape.batch_invariant && shape.M <= rows;
}

bool always(const GemmShape&, const DeviceProfile&) {
  return true;
}

// 64x64 by 2x2 simdgroups is the usual tile of simdgroup_matrix kernels (MLX's steel GEMM, llama.cpp's mul_mm is
// 64x32): 16 accumulators and 8 operand fragments a simdgroup, below the 113 registers at which occupancy falls.
constexpr std::array portable_rules{
    TileRule{
        [](const GemmShape& shape, const DeviceProfile&) { return shape.N <= 32 || rows_at_most(shape, 32); },
        {{32, 32}, "half of a 64x64 tile would be empty"}
    },
    TileRule{
        [](const GemmShape& shape, const DeviceProfile& device) { return leaves_cores_idle(shape, {64, 64}, device); },
        {{32, 32}, "64x64 tiles would leave GPU cores idle"}
    },
    TileRule{always, {{64, 64}, "the general tile"}},
};

// From tessl's selection table (M5 Pro): 128x64 in general, 64x64 for N <= 512 or M < 128 (there for bf16; a tile of
// 128 rows is half empty in any type). Exact float32 does not run on the matrix unit, and tessl's fastest
// tile for it is 32x32 a simdgroup, which 64x64 by four is. 128x128 by four spilled registers on M4.
constexpr std::array tensorops_rules{
    TileRule{
        [](const GemmShape& shape, const DeviceProfile&) { return shape.precision == GemmPrecision::float32; },
        {{64, 64}, "exact float32: 32x32 a simdgroup"}
    },
    TileRule{
        [](const GemmShape& shape, const DeviceProfile&) { return shape.N <= 512; }, {{64, 64}, "few columns: N <= 512"}
    },
    TileRule{
        [](const GemmShape& shape, const DeviceProfile&) { return rows_at_most(shape, 127); },
        {{64, 64}, "few rows: M < 128"}
    },
    TileRule{
        [](const GemmShape& shape, const DeviceProfile& device) { return leaves_cores_idle(shape, {128, 64}, device); },
        {{64, 64}, "128x64 tiles would leave GPU cores idle"}
    },
    TileRule{always, {{128, 64}, "the general tile"}},
};

GemmTileChoice first_of(std::span<const TileRule> rules, const GemmShape& shape, const DeviceProfile& device) {
  return std::find_if(
             rules.begin(), rules.end(), [&](const auto& rule) { return rule.applies(shape, device); }
  )->choice;
}

// tessl, M5 Pro: from 2048 tiles on, panels of 8 tile rows (+11 % at 4096^3).
constexpr int64_t panel_tiles = 2048;
constexpr int32_t panel_rows = 8;

// tessl, M5 Pro: where b has 2^23 elements or more, bands of 512 rows for float32 and for transposed operands. As
// float32 that b is 32 MiB, beyond the last-level cache. Relaxed float32 reads the same bytes, hence the same rule.
constexpr int64_t band_elements_of_b = int64_t{1} << 23;
constexpr int32_t band_rows = 512;

} // namespace

GemmTileChoice choose_portable_tile(const GemmShape& shape, const DeviceProfile& device) {
  return first_of(portable_rules, shape, device);
}

GemmTileChoice choose_tensorops_tile(const GemmShape& shape, const DeviceProfile& device) {
  return first_of(tensorops_rules, shape, device);
}

int32_t choose_walk_width(const GemmShape& shape, const GemmTile& tile) {
  const int32_t tiles_m = tile_count(shape.M, tile.m);
  const int32_t tiles_n = tile_count(shape.N, tile.n);
  const bool is_float32 =
      shape.precision == GemmPrecision::float32 || shape.precision == GemmPrecision::float32_relaxed;
  int32_t width = 0;
  if (int64_t{shape.N} * shape.K >= band_elements_of_b && (is_float32 || shape.layout != GemmLayout::nn)) {
    width = band_rows / tile.m;
  } else if (int64_t{tiles_m} * tiles_n >= panel_tiles) {
    width = panel_rows;
  }
  width = std::min(width, tiles_m);
  return width > 1 ? width : 0; // bands of one row are the plain order
}

Size3 walk_grid(int32_t tiles_m, int32_t tiles_n, int32_t width, int64_t batch) {
  if (batch > std::numeric_limits<int32_t>::max()) {
    throw std::invalid_argument(
        "[mlx_tessl.matmul] the batch has " + decimal(batch) + " members; it may have 2147483647"
    );
  }
  const auto members = static_cast<uint32_t>(batch);
  const auto columns = static_cast<uint32_t>(tiles_n);
  if (width == 0) {
    return {columns, static_cast<uint32_t>(tiles_m), members};
  }
  return {columns * width, static_cast<uint32_t>(tile_count(tiles_m, width)), members};
}

} // namespace tessl
