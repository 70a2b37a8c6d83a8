#pragma once

#include <array>
#include <cstdint>

#include "launch/device_profile.h"
#include "launch/plan.h"

namespace tessl {

// How a (first letter) and b (second) lie in memory: n as they are multiplied, t as their transpose.
enum class GemmLayout : uint8_t { nn, nt, tn, tt };

// What a product is computed in; sums are float32 always, and int32 for int8.
enum class GemmPrecision : uint8_t { float32, float32_relaxed, float16, bfloat16, int8 };

// Outputs of one threadgroup.
struct GemmTile {
  int32_t m = 0;
  int32_t n = 0;

  bool operator==(const GemmTile&) const = default;
};

// All that the choice of a tile and of a walk may depend on, besides the device.
struct GemmShape {
  int32_t M = 0;
  int32_t N = 0;
  int32_t K = 0;
  int64_t batch = 1;
  GemmLayout layout = GemmLayout::nn;
  GemmPrecision precision = GemmPrecision::float32;
  bool batch_invariant = false; // the tile may depend on N and K alone
};

// A tile, and why it was chosen.
struct GemmTileChoice {
  GemmTile tile;
  const char* reason;
};

// Every tile that has a kernel.
inline constexpr std::array portable_tiles{GemmTile{64, 64}, GemmTile{64, 32}, GemmTile{32, 32}};
inline constexpr std::array tensorops_tiles{GemmTile{128, 64}, GemmTile{64, 128}, GemmTile{64, 64}};

GemmTileChoice choose_portable_tile(const GemmShape& shape, const DeviceProfile& device);
GemmTileChoice choose_tensorops_tile(const GemmShape& shape, const DeviceProfile& device);

// How a product is computed: few rows by vectors, in one pass over b; by tiles; or by tiles of partitions of K, whose
// partial sums a second launch adds in order.
enum class GemmKind : uint8_t { vector, tiled, split };

// Rows of a that a vector kernel may have, and columns of one of its threadgroups, by the layout of b.
inline constexpr std::array vector_rows{1, 2, 4, 8};
inline constexpr int32_t vector_columns_nn = 64;
inline constexpr int32_t vector_columns_nt = 8;

struct GemmChoice {
  GemmKind kind = GemmKind::tiled;
  GemmTile tile;
  int32_t partition_k = 0; // of a split product a multiple of 256; otherwise K
  const char* reason = nullptr;
};

GemmChoice choose_gemm(const GemmShape& shape, const DeviceProfile& device, bool tensorops);

// Tile rows of a band of the grid walk, 0 for row by row: see kernels/common/grid_walk.h.
int32_t choose_walk_width(const GemmShape& shape, const GemmTile& tile);

// The grid over which grid_tile() reaches every tile of every member of the batch once.
// Throws std::invalid_argument for a batch beyond a grid's reach.
Size3 walk_grid(int32_t tiles_m, int32_t tiles_n, int32_t width, int64_t batch);

inline int32_t tile_count(int32_t extent, int32_t tile) {
  return extent / tile + (extent % tile != 0);
}

} // namespace tessl
