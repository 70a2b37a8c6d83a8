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

bool is_small(const DeviceProfile& device) {
  return device.gpu_class == GpuClass::base || device.gpu_class == GpuClass::phone;
}

// Before M5, and wherever TensorOps cannot read. 64x64 by 2x2 simdgroups is the usual tile of simdgroup_matrix kernels
// (MLX's steel GEMM on Pro, Max and Ultra): 16 accumulators and 8 operand fragments a simdgroup, below the 113
// registers at which occupancy falls. On base and phone parts MLX takes 64x32 for nt.
constexpr std::array portable_rules{
    TileRule{
        [](const GemmShape& shape, const DeviceProfile&) { return shape.N <= 32 || rows_at_most(shape, 32); },
        {{32, 32}, "half of a 64x64 tile would be empty"}
    },
    TileRule{
        [](const GemmShape& shape, const DeviceProfile& device) { return leaves_cores_idle(shape, {64, 64}, device); },
        {{32, 32}, "64x64 tiles would leave GPU cores idle"}
    },
    TileRule{
        [](const GemmShape& shape, const DeviceProfile& device) {
          return shape.layout == GemmLayout::nt && is_small(device);
        },
        {{64, 32}, "nt on a base part (MLX's steel GEMM)"}
    },
    TileRule{always, {{64, 64}, "the general tile"}},
};

// M5 on. tessl's selection table (M5 Pro): 128x64 in general, 64x64 for N <= 512 or M < 128 (there for bf16; a tile of
// 128 rows is half empty in any type). Base parts: 64x128 is 1.09 to 1.16 times as fast as 128x128 (mlx issue 3295).
// Max and Ultra: MLX ships 64x128, and llama.cpp saw +26 % with it on M5 Max (issue 20962). Metal's name for the GPU is
// the same for Pro and Max: only a profile that tells the number of cores is a Pro. Exact float32 does not run on the
// matrix unit, and tessl's fastest tile for it is 32x32 a simdgroup, which 64x64 by four is. 128x128 by four spilled
// registers on M4.
constexpr int pro_cores = 20;

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
        {{64, 64}, "tiles of 128x64 or 64x128 would leave GPU cores idle"}
    },
    TileRule{
        [](const GemmShape&, const DeviceProfile& device) {
          return device.gpu_class == GpuClass::max && device.cores <= pro_cores;
        },
        {{128, 64}, "the general tile of Pro parts (tessl)"}
    },
    TileRule{always, {{64, 128}, "the general tile of base, Max and Ultra parts (MLX, llama.cpp)"}},
};

GemmTileChoice first_of(std::span<const TileRule> rules, const GemmShape& shape, const DeviceProfile& device) {
  return std::find_if(
             rules.begin(), rules.end(), [&](const auto& rule) { return rule.applies(shape, device); }
  )->choice;
}

// What the choice between vectors, tiles and partitions looks at.
struct KindQuery {
  const GemmShape& shape;
  const DeviceProfile& device;
  GemmTile tile; // in which the product would be computed
  bool tensorops;
};

struct KindRule {
  bool (*applies)(const KindQuery& query);
  GemmKind kind;
  int32_t (*partition_k)(const KindQuery& query); // of a split
  const char* reason;
};

// llama.cpp's break-even between its kernels for a few vectors and its tiled ones (ne11_mm_min). With more rows a row
// of tiles reads b once as well, and keeps the matrix units busy.
constexpr int32_t vector_row_limit = vector_rows.back();
constexpr int32_t vector_min_k = 128; // elements of K that the lanes of a simdgroup take at once

// tessl splits from K = 2048 on, for M and N up to 384 with one up to 128: at most 12 tiles of 64x64 on the 20 cores of
// M5 Pro, that is, where cores would be idle. A partition of 512 reads 8 times the bytes of its partial sums (64x64,
// 16-bit), so that those cost little.
constexpr int32_t split_min_k = 2048;
constexpr int32_t least_partition = 512;
constexpr int32_t partition_step = 256; // the TensorOps kernel's block of K

// MLX's matrix-unit GEMM splits K >= 3 max(M, N) into partitions of 4096 when there is no batch; tessl likewise float32
// where K N >= 2^23 (4096x768x50304: 99.8 to 45.4 ms). Long runs over K drift apart and lose the cache (mlx issue
// 3017).
constexpr int32_t long_partition = 4096;

int32_t vector_columns(GemmLayout layout) {
  return layout == GemmLayout::nn ? vector_columns_nn : vector_columns_nt;
}

bool vectors_fit(const KindQuery& query) {
  const auto& shape = query.shape;
  const bool a_has_rows = shape.layout == GemmLayout::nn || shape.layout == GemmLayout::nt;
  const bool fills_cores =
      threadgroups(shape, {vector_row_limit, vector_columns(shape.layout)}) >= query.device.cores ||
      shape.K < split_min_k;
  return a_has_rows && shape.M <= vector_row_limit && shape.K >= vector_min_k && fills_cores;
}

int64_t itemsize_of(GemmPrecision precision) {
  return precision == GemmPrecision::float16 || precision == GemmPrecision::bfloat16 ? 2 : 4;
}

// At least `length`, and so that the partial sums, 4 M N bytes a partition, take no more than the operands,
// (M + N) K itemsize; a multiple of partition_step, which keeps TensorOps' alignment.
int32_t partition_of(const GemmShape& shape, int64_t length) {
  const double M = shape.M;
  const double N = shape.N;
  const double least = 4.0 * M * N / ((M + N) * static_cast<double>(itemsize_of(shape.precision)));
  length = std::max({length, static_cast<int64_t>(least), int64_t{least_partition}});
  const int64_t whole = (length + partition_step - 1) / partition_step * partition_step;
  return static_cast<int32_t>(std::min<int64_t>(whole, shape.K));
}

// As many partitions as give each core two threadgroups.
int32_t partition_that_fills_cores(const KindQuery& query) {
  const auto& shape = query.shape;
  const int64_t tiles = threadgroups(shape, query.tile);
  const int64_t wanted = (2 * int64_t{query.device.cores} + tiles - 1) / tiles;
  return partition_of(shape, (shape.K + wanted - 1) / wanted);
}

int32_t partition_of_long_k(const KindQuery& query) {
  return partition_of(query.shape, long_partition);
}

int32_t whole_k(const KindQuery& query) {
  return query.shape.K;
}

// The first rule that applies decides; one that would split into a single partition does not apply.
constexpr std::array kind_rules{
    KindRule{
        [](const KindQuery& query) { return query.shape.batch_invariant; },
        GemmKind::tiled,
        whole_k,
        "batch invariance: the kernel and the order of sums depend on N and K alone"
    },
    KindRule{
        vectors_fit, GemmKind::vector, whole_k, "few rows (M <= 8): the time is that of reading b once (llama.cpp)"
    },
    KindRule{
        [](const KindQuery& query) {
          return query.shape.K >= split_min_k && threadgroups(query.shape, query.tile) < query.device.cores;
        },
        GemmKind::split,
        partition_that_fills_cores,
        "K >= 2048 and tiles that would leave GPU cores idle (tessl)"
    },
    KindRule{
        [](const KindQuery& query) {
          const auto& shape = query.shape;
          return query.tensorops && shape.batch == 1 && shape.K >= 2 * long_partition &&
                 shape.K / 3 >= std::max(shape.M, shape.N);
        },
        GemmKind::split,
        partition_of_long_k,
        "K >= 3 max(M, N): partitions of 4096 keep to the cache (MLX)"
    },
    KindRule{[](const KindQuery&) { return true; }, GemmKind::tiled, whole_k, "tiles fill the GPU"},
};

// tessl, M5 Pro: from 2048 tiles on, panels of 8 tile rows (+11 % at 4096^3).
constexpr int64_t panel_tiles = 2048;
constexpr int32_t panel_rows = 8;

// tessl, M5 Pro: where b has 2^23 elements or more, bands of 512 rows for float32, for int8 and for transposed
// operands. As float32 that b is 32 MiB, beyond the last-level cache. Relaxed float32 reads the same bytes, hence the
// same rule.
constexpr int64_t band_elements_of_b = int64_t{1} << 23;
constexpr int32_t band_rows = 512;

} // namespace

GemmTileChoice choose_portable_tile(const GemmShape& shape, const DeviceProfile& device) {
  return first_of(portable_rules, shape, device);
}

GemmTileChoice choose_tensorops_tile(const GemmShape& shape, const DeviceProfile& device) {
  return first_of(tensorops_rules, shape, device);
}

GemmChoice choose_gemm(const GemmShape& shape, const DeviceProfile& device, bool tensorops) {
  const auto tile = tensorops ? choose_tensorops_tile(shape, device) : choose_portable_tile(shape, device);
  const KindQuery query{shape, device, tile.tile, tensorops};
  for (const auto& rule : kind_rules) {
    if (!rule.applies(query)) {
      continue;
    }
    const int32_t partition_k = rule.partition_k(query);
    if (rule.kind == GemmKind::split && partition_k == shape.K) {
      continue;
    }
    if (rule.kind == GemmKind::vector) {
      const int32_t rows = *std::lower_bound(vector_rows.begin(), vector_rows.end(), shape.M);
      return {rule.kind, {rows, vector_columns(shape.layout)}, partition_k, rule.reason};
    }
    return {rule.kind, tile.tile, partition_k, rule.kind == GemmKind::tiled ? tile.reason : rule.reason};
  }
  return {};
}

int32_t choose_walk_width(const GemmShape& shape, const GemmTile& tile) {
  const int32_t tiles_m = tile_count(shape.M, tile.m);
  const int32_t tiles_n = tile_count(shape.N, tile.n);
  const bool is_16_bit = shape.precision == GemmPrecision::float16 || shape.precision == GemmPrecision::bfloat16;
  int32_t width = 0;
  if (int64_t{shape.N} * shape.K >= band_elements_of_b && (!is_16_bit || shape.layout != GemmLayout::nn)) {
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
