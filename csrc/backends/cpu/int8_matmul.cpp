#include "backends/cpu/int8_matmul.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "backends/cpu/dense_matrix.h"
#include "backends/cpu/elements.h"
#include "backends/cpu/int8_kernels.h"
#include "backends/cpu/onednn.h"
#include "backends/cpu/pieces.h"
#include "backends/cpu/scratch.h"
#include "backends/cpu/thread_pool.h"
#include "backends/cpu/vector_kernels.h"

// A product is cut into tasks, each a block of the output that one thread computes from start to end: by oneDNN where
// that is used, else by our kernels, which for each depth of K pack the block's rows of a and columns of b as pairs of
// int16, and add their product to int32 sums. The sums are exact either way, so that their bits do not tell which.

namespace tessl::cpu {
namespace {

constexpr int64_t panel_depth = 512; // of K; a panel of b is then 256 KiB, within the L2 cache of recent cores
constexpr int64_t max_block_columns = 256;
constexpr int64_t max_block_rows = 256;
constexpr int64_t min_block_rows = 48;
constexpr int64_t alignment = 32;     // of blocks; a multiple of any strip
constexpr int64_t wanted_blocks = 16; // of all products together: what an unlucky thread leaves, others take

struct Task {
  const Int8Matmul* product = nullptr;
  Range rows, columns;
};

thread_local Scratch a_scratch;
thread_local Scratch b_scratch;
thread_local Scratch sums_scratch;
thread_local Scratch row_scratch;

int64_t round_up(int64_t x, int64_t multiple) {
  return ceil_div(x, multiple) * multiple;
}

const int8_t* element_at(const MatrixView& view, int64_t row, int64_t column) {
  return static_cast<const int8_t*>(view.data) + (row * view.strides[0] + column * view.strides[1]);
}

bool goes_through_onednn(const Int8Matmul& p) {
  return p.K > 0 && onednn_use(OnednnType::int8).used;
}

// Int32 sums of a block, and the distance between its rows.
struct Sums {
  int32_t* data = nullptr;
  int64_t leading_dimension = 0;

  int32_t* row(int64_t m) const {
    return data + m * leading_dimension;
  }
};

// Rows are as long as strips need them.
Sums own_sums(const Task& task) {
  const Int8Matmul& p = *task.product;
  const auto& kernels = int8_kernels();
  const int64_t ld_sums = round_up(task.columns.size(), kernels.strip);
  int32_t* sums = sums_scratch.reserve_as<int32_t>(task.rows.size() * ld_sums);
  std::fill_n(sums, task.rows.size() * ld_sums, 0);
  for_each_piece({0, p.K}, panel_depth, [&](Range depth) {
    const int64_t pairs = ceil_div(depth.size(), 2);
    Int8Pair* a = a_scratch.reserve_as<Int8Pair>(task.rows.size() * pairs);
    Int8Pair* b = b_scratch.reserve_as<Int8Pair>(ld_sums * pairs);
    kernels.pack_rows(
        a,
        pairs,
        element_at(p.a, task.rows.begin, depth.begin),
        p.a.strides[0],
        p.a.strides[1],
        task.rows.size(),
        depth.size()
    );
    kernels.pack_strips(
        b,
        element_at(p.b, depth.begin, task.columns.begin),
        p.b.strides[0],
        p.b.strides[1],
        task.columns.size(),
        depth.size()
    );
    kernels.multiply(sums, ld_sums, a, pairs, b, task.rows.size(), task.columns.size(), pairs);
  });
  return {sums, ld_sums};
}

// By oneDNN, in `out` itself where that takes the sums as they are.
std::optional<Sums> onednn_sums(const Task& task) {
  const Int8Matmul& p = *task.product;
  const int64_t M = task.rows.size();
  const int64_t N = task.columns.size();
  Sums sums{nullptr, N};
  if (p.out_dtype == mlx::core::int32) {
    sums = {static_cast<int32_t*>(p.out) + task.rows.begin * p.N + task.columns.begin, p.N};
  } else {
    sums.data = sums_scratch.reserve_as<int32_t>(M * N);
  }
  const auto a = dense_matrix(element_at(p.a, task.rows.begin, 0), p.a.strides, M, p.K, a_scratch);
  const auto b = dense_matrix(element_at(p.b, 0, task.columns.begin), p.b.strides, p.K, N, b_scratch);
  if (!onednn_product(M, N, p.K, a, b, sums.data, sums.leading_dimension)) {
    return std::nullopt;
  }
  return sums;
}

Sums sums_of(const Task& task) {
  if (goes_through_onednn(*task.product)) {
    if (const auto sums = onednn_sums(task)) {
      return *sums;
    }
  }
  return own_sums(task);
}

float addend(const MatrixView& view, int64_t row, int64_t column) {
  return static_cast<const float*>(view.data)[row * view.strides[0] + column * view.strides[1]];
}

// One row of a block: the exact sums, scaled and shifted, through the activation.
void finish_row(const Int8Matmul& p, const int32_t* sums, int64_t m, Range columns) {
  const int64_t first = m * p.N + columns.begin;
  if (p.out_dtype == mlx::core::int32) {
    int32_t* out = static_cast<int32_t*>(p.out) + first;
    if (out != sums) {
      std::copy_n(sums, columns.size(), out);
    }
    return;
  }
  float* row = row_scratch.reserve(columns.size());
  std::copy_n(sums, columns.size(), row);
  for (const MatrixView* scale : {&p.scale_a, &p.scale_b}) {
    if (*scale) {
      for (int64_t i = 0; i < columns.size(); ++i) {
        row[i] *= addend(*scale, m, columns.begin + i);
      }
    }
  }
  if (p.bias) {
    for (int64_t i = 0; i < columns.size(); ++i) {
      row[i] += addend(p.bias, m, columns.begin + i);
    }
  }
  const Element element = element_of(p.out_dtype);
  const EpilogueRow epilogue{.activation = p.activation, .c = {}, .bias = {}, .residual = {}};
  vector_kernels().finish(element, advance(p.out, element, first), row, epilogue, columns.size());
}

void compute(const Task& task) {
  const Sums sums = sums_of(task);
  for (int64_t i = 0; i < task.rows.size(); ++i) {
    finish_row(*task.product, sums.row(i), task.rows.begin + i, task.columns);
  }
}

// Columns first, which share no packed b; rows where columns do not suffice.
void add_own_tasks(std::vector<Task>& tasks, const Int8Matmul& p, int64_t wanted) {
  const int64_t columns = std::min(round_up(ceil_div(p.N, wanted), alignment), max_block_columns);
  const int64_t row_blocks = std::max<int64_t>(1, wanted / ceil_div(p.N, columns));
  const int64_t rows = std::clamp(ceil_div(p.M, row_blocks), min_block_rows, max_block_rows);
  for_each_piece({0, p.N}, columns, [&](Range column_block) {
    for_each_piece({0, p.M}, rows, [&](Range row_block) { tasks.push_back({&p, row_block, column_block}); });
  });
}

void add_tasks(std::vector<Task>& tasks, const Int8Matmul& p, int64_t wanted) {
  if (!goes_through_onednn(p)) {
    add_own_tasks(tasks, p, wanted);
    return;
  }
  for (const auto& [rows, columns] : onednn_blocks(OnednnType::int8, p.M, p.N, p.K, wanted)) {
    tasks.push_back({&p, rows, columns});
  }
}

} // namespace

void int8_matmul(std::span<const Int8Matmul> products) {
  std::vector<Task> tasks;
  for (const Int8Matmul& product : products) {
    add_tasks(tasks, product, ceil_div(wanted_blocks, static_cast<int64_t>(products.size())));
  }
  ThreadPool::instance().parallel_for(static_cast<int64_t>(tasks.size()), [&](int64_t i) {
    compute(tasks[static_cast<size_t>(i)]);
  });
}

} // namespace tessl::cpu
