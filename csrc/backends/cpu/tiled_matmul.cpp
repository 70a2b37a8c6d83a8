#include "backends/cpu/tiled_matmul.h"

#include <algorithm>
#include <vector>

#include "backends/cpu/elements.h"
#include "backends/cpu/matmul_epilogue.h"
#include "backends/cpu/pieces.h"
#include "backends/cpu/scratch.h"
#include "backends/cpu/thread_pool.h"
#include "backends/cpu/tile_kernels.h"

namespace tessl::cpu {
namespace {

// Below these a product is left to BLAS, or to the kernels that stream b.
constexpr int64_t least_side = 16;
constexpr double least_multiplications = 1e6;
constexpr int64_t longest_depth = 16 * 1024;

// Floats that are packed at once (32 MiB), and those of one task.
constexpr int64_t max_packed = 8 * 1024 * 1024;
constexpr int64_t packed_by_task = 32 * 1024;

// A block's rows of a stay in L2 (a slice of 384: 240 KiB), a panel of b in L1; the columns bound the time of a task.
constexpr int64_t block_rows = 160;
constexpr int64_t block_columns = 384;
constexpr int64_t slice_depth = 384;
constexpr int64_t wanted_blocks = 16;

thread_local Scratch packed_scratch;
thread_local Scratch sums_scratch;

int64_t round_up(int64_t x, int64_t multiple) {
  return ceil_div(x, multiple) * multiple;
}

// Rows of one operand as panels: panel i, of K * width floats, holds the rows from i * width on.
struct Panels {
  MatrixView source; // (row, k)
  Range rows;
  int64_t width = 0;
  int64_t K = 0;
  float* data = nullptr;

  int64_t count() const {
    return ceil_div(rows.size(), width);
  }
  int64_t floats() const {
    return count() * width * K;
  }
  // `row` is a multiple of `width` past the first.
  const float* at(int64_t row, int64_t k) const {
    return data + (row - rows.begin) * K + k * width;
  }
};

// Rows of an operand with their elements side by side: where they are if they are such float32, else a copy.
struct Rows {
  MatrixView source; // (row, k)
  Range rows;
  int64_t K = 0;
  bool in_place = false;
  int64_t leading_dimension = 0;
  const float* data = nullptr;
  float* copy = nullptr; // what `data` is, when not in place

  static Rows of(const Matmul& p, Range rows) {
    Rows a{.source = p.a, .rows = rows, .K = p.K};
    a.in_place = p.dtype == mlx::core::float32 && p.a.strides[1] == 1;
    a.leading_dimension = a.in_place ? p.a.strides[0] : round_up(p.K, tile_kernels().columns);
    if (a.in_place) {
      a.data = static_cast<const float*>(p.a.data) + rows.begin * p.a.strides[0];
    }
    return a;
  }
  int64_t floats() const {
    return in_place ? 0 : rows.size() * leading_dimension;
  }
  const float* at(int64_t row, int64_t k) const {
    return data + (row - rows.begin) * leading_dimension + k;
  }
};

// Rows and columns of a product's output whose operands are packed at once.
struct Slab {
  const Matmul* product = nullptr;
  Rows a;
  Panels b;
};

Slab slab_of(const Matmul& p, Range rows, Range columns) {
  const MatrixView b{p.b.data, {p.b.strides[1], p.b.strides[0]}};
  return {&p, Rows::of(p, rows), {b, columns, tile_kernels().columns, p.K}};
}

// Calls f(Slab) for the pieces of a product; none of them packs more than max_packed, as long as K allows.
template <typename Function>
void for_each_slab(const Matmul& p, Function f) {
  const auto& tile = tile_kernels();
  const int64_t most = max_packed / 2 / p.K;
  const int64_t rows = std::max(round_up(most, tile.rows) - tile.rows, tile.rows);
  const int64_t columns = std::max(round_up(most, tile.columns) - tile.columns, tile.columns);
  for_each_piece({0, p.N}, columns, [&](Range piece) {
    for_each_piece({0, p.M}, rows, [&](Range rows_of_piece) { f(slab_of(p, rows_of_piece, piece)); });
  });
}

// Panels of b, or rows of a, to pack.
struct PackTask {
  const Slab* slab;
  bool is_a;
  Range part;
};

void pack_panels(const Panels& panels, Element element, Range part) {
  const auto [row_stride, k_stride] = panels.source.strides;
  for (int64_t i = part.begin; i < part.end; ++i) {
    const int64_t first = panels.rows.begin + i * panels.width;
    const int64_t count = std::min(panels.width, panels.rows.end - first);
    const void* source = advance(panels.source.data, element, first * row_stride);
    float* panel = panels.data + i * panels.width * panels.K;
    tile_kernels().pack(element, panel, panels.width, source, row_stride, k_stride, count, panels.K);
  }
}

// A copy of rows is a panel of the columns.
void copy_rows(const Rows& a, Element element, Range part) {
  const auto [row_stride, k_stride] = a.source.strides;
  const void* source = advance(a.source.data, element, (a.rows.begin + part.begin) * row_stride);
  float* copy = a.copy + part.begin * a.leading_dimension;
  tile_kernels().pack(element, copy, a.leading_dimension, source, k_stride, row_stride, a.K, part.size());
}

void pack(const PackTask& task) {
  const Element element = element_of(task.slab->product->dtype);
  if (task.is_a) {
    copy_rows(task.slab->a, element, task.part);
  } else {
    pack_panels(task.slab->b, element, task.part);
  }
}

struct BlockTask {
  const Slab* slab;
  Range rows, columns;
};

void multiply(const BlockTask& task, Sums sums) {
  const auto& tile = tile_kernels();
  const auto& [product, a, b] = *task.slab;
  // Slices of like length: the last one is not left a stump.
  const int64_t slice = ceil_div(product->K, ceil_div(product->K, slice_depth));
  for_each_piece({0, product->K}, slice, [&](Range depth) {
    for_each_piece(task.columns, tile.columns, [&](Range columns) {
      for_each_piece(task.rows, tile.rows, [&](Range rows) {
        tile.multiply(
            sums.row(rows.begin - task.rows.begin) + (columns.begin - task.columns.begin),
            sums.leading_dimension,
            a.at(rows.begin, depth.begin),
            a.leading_dimension,
            b.at(columns.begin, depth.begin),
            rows.size(),
            columns.size(),
            depth.size(),
            depth.begin > 0
        );
      });
    });
  });
}

Sums sums_of(const BlockTask& task) {
  const Matmul& p = *task.slab->product;
  if (p.dtype == mlx::core::float32) {
    return {static_cast<float*>(p.out) + task.rows.begin * p.N + task.columns.begin, p.N};
  }
  return {sums_scratch.reserve(task.rows.size() * task.columns.size()), task.columns.size()};
}

void compute(const BlockTask& task) {
  const Sums sums = sums_of(task);
  multiply(task, sums);
  finish(*task.slab->product, task.rows, task.columns, sums);
}

template <typename Task, typename Body>
void run(const std::vector<Task>& tasks, Body body) {
  const auto count = static_cast<int64_t>(tasks.size());
  ThreadPool::instance().parallel_for(count, [&](int64_t i) { body(tasks[static_cast<size_t>(i)]); });
}

void pack_all(std::vector<Slab>& slabs) {
  int64_t floats = 0;
  for (const Slab& slab : slabs) {
    floats += slab.a.floats() + slab.b.floats();
  }
  float* free = packed_scratch.reserve(floats);
  std::vector<PackTask> tasks;
  auto add = [&](const Slab& slab, bool is_a, int64_t count, int64_t size) {
    const int64_t part = std::max<int64_t>(packed_by_task / size, 1);
    for_each_piece({0, count}, part, [&](Range piece) { tasks.push_back({&slab, is_a, piece}); });
  };
  for (Slab& slab : slabs) {
    auto& [product, a, b] = slab;
    if (!a.in_place) {
      a.data = a.copy = free;
      free += a.floats();
      add(slab, true, a.rows.size(), a.leading_dimension);
    }
    b.data = free;
    free += b.floats();
    add(slab, false, b.count(), b.width * b.K);
  }
  run(tasks, pack);
}

// The cut has no say in the result: a sum depends on its row of a and its column of b alone.
void add_blocks(std::vector<BlockTask>& tasks, const Slab& slab, int64_t wanted) {
  const auto& tile = tile_kernels();
  const Range rows = slab.a.rows;
  const Range columns = slab.b.rows;
  const int64_t height = round_up(ceil_div(rows.size(), ceil_div(rows.size(), block_rows)), tile.rows);
  const int64_t rows_of_blocks = ceil_div(rows.size(), height);
  const int64_t per_row = std::max(ceil_div(columns.size(), block_columns), ceil_div(wanted, rows_of_blocks));
  const int64_t width = round_up(ceil_div(columns.size(), per_row), tile.columns);
  for_each_piece(columns, width, [&](Range block) {
    for_each_piece(rows, height, [&](Range rows_of_block) { tasks.push_back({&slab, rows_of_block, block}); });
  });
}

void compute_all(std::vector<Slab>& slabs) {
  if (slabs.empty()) {
    return;
  }
  pack_all(slabs);
  std::vector<BlockTask> tasks;
  for (const Slab& slab : slabs) {
    add_blocks(tasks, slab, ceil_div(wanted_blocks, static_cast<int64_t>(slabs.size())));
  }
  run(tasks, compute);
  slabs.clear();
}

} // namespace

bool is_tiled(const Matmul& p) {
  const double multiplications = static_cast<double>(p.M) * static_cast<double>(p.N) * static_cast<double>(p.K);
  return !p.batch_invariant && std::min(p.M, p.N) >= least_side && p.K <= longest_depth &&
         multiplications >= least_multiplications;
}

void tiled_matmul(std::span<const Matmul> products) {
  std::vector<Slab> slabs;
  int64_t packed = 0;
  for (const Matmul& product : products) {
    for_each_slab(product, [&](Slab slab) {
      const int64_t floats = slab.a.floats() + slab.b.floats();
      if (packed + floats > max_packed) {
        compute_all(slabs);
        packed = 0;
      }
      slabs.push_back(slab);
      packed += floats;
    });
  }
  compute_all(slabs);
}

} // namespace tessl::cpu
