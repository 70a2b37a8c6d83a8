#include "backends/cpu/int8_matmul.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "backends/cpu/blocks.h"
#include "backends/cpu/dense_matrix.h"
#include "backends/cpu/elements.h"
#include "backends/cpu/int8_kernels.h"
#include "backends/cpu/onednn.h"
#include "backends/cpu/pieces.h"
#include "backends/cpu/scratch.h"
#include "backends/cpu/thread_pool.h"
#include "backends/cpu/vector_kernels.h"

// A product is cut into tasks, each a block of the output that one thread computes from start to end: by oneDNN where
// that is used, else by our kernels, which for each depth of K pack the block's rows of a and columns of b in groups,
// and add their product to int32 sums. The sums are exact either way, so that their bits do not tell which.

namespace tessl::cpu {
namespace {

constexpr int64_t panel_depth = 512;  // of K; a strip of b is then 32 KiB, within an L1 cache of 48
constexpr int64_t wanted_blocks = 16; // of all products together: what an unlucky thread leaves, others take

constexpr int64_t few_rows = 4;
constexpr int64_t longest_dot = 32 * 1024; // whose sum of unsigned products is an int32

constexpr double least_multiplications = 1e6; // of oneDNN: it is opened by nothing less

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

// Int32 sums of a block, and the distance between its rows.
struct Sums {
  int32_t* data = nullptr;
  int64_t leading_dimension = 0;

  int32_t* row(int64_t m) const {
    return data + m * leading_dimension;
  }
};

int32_t* out_of(const Task& task) {
  return static_cast<int32_t*>(task.product->out) + task.rows.begin * task.product->N + task.columns.begin;
}

// In `out` itself where that takes the sums as they are; else in rows of `columns`.
Sums place_of_sums(const Task& task, int64_t columns) {
  const Int8Matmul& p = *task.product;
  if (p.out_dtype == mlx::core::int32 && columns == task.columns.size()) {
    return {out_of(task), p.N};
  }
  return {sums_scratch.reserve_as<int32_t>(task.rows.size() * columns), columns};
}

bool is_in_place(const Int8Matmul& p) {
  return p.M <= few_rows && p.K > 0 && p.a.strides[1] == 1 && p.b.strides[0] == 1;
}

Sums sums_in_place(const Task& task) {
  const Int8Matmul& p = *task.product;
  const Sums sums = place_of_sums(task, task.columns.size());
  for_each_piece({0, p.K}, longest_dot, [&](Range depth) {
    int8_kernels().multiply_in_place(
        sums.data,
        sums.leading_dimension,
        element_at(p.a, task.rows.begin, depth.begin),
        p.a.strides[0],
        element_at(p.b, depth.begin, task.columns.begin),
        p.b.strides[1],
        task.rows.size(),
        task.columns.size(),
        depth.size(),
        depth.begin > 0
    );
  });
  return sums;
}

Sums packed_sums(const Task& task) {
  const Int8Matmul& p = *task.product;
  const auto& kernels = int8_kernels();
  const int64_t columns = round_up(task.columns.size(), kernels.strip);
  const Sums sums = place_of_sums(task, columns);
  if (p.K == 0) {
    for (int64_t m = 0; m < task.rows.size(); ++m) {
      std::fill_n(sums.row(m), columns, 0);
    }
  }
  for_each_piece({0, p.K}, panel_depth, [&](Range depth) {
    const int64_t groups = ceil_div(depth.size(), kernels.group);
    Int8Group* a = a_scratch.reserve_as<Int8Group>(task.rows.size() * groups);
    Int8Group* b = b_scratch.reserve_as<Int8Group>(columns * (1 + groups));
    kernels.pack_rows(
        a,
        groups,
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
    kernels.multiply(
        sums.data, sums.leading_dimension, a, groups, b, task.rows.size(), task.columns.size(), groups, depth.begin > 0
    );
  });
  return sums;
}

std::optional<Sums> onednn_sums(const Task& task) {
  const Int8Matmul& p = *task.product;
  const int64_t M = task.rows.size();
  const int64_t N = task.columns.size();
  const Sums sums = place_of_sums(task, N);
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
  return is_in_place(*task.product) ? sums_in_place(task) : packed_sums(task);
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

} // namespace

bool goes_through_onednn(const Int8Matmul& p) {
  const double multiplications = static_cast<double>(p.M) * static_cast<double>(p.N) * static_cast<double>(p.K);
  return multiplications >= least_multiplications && onednn_use(OnednnType::int8).used;
}

void int8_matmul(std::span<const Int8Matmul> products) {
  const int64_t wanted = ceil_div(wanted_blocks, static_cast<int64_t>(products.size()));
  std::vector<Task> tasks;
  for (const Int8Matmul& product : products) {
    for (const auto& [rows, columns] : packed_blocks(product.M, product.N, product.K, sizeof(int8_t), wanted)) {
      tasks.push_back({&product, rows, columns});
    }
  }
  ThreadPool::instance().parallel_for(static_cast<int64_t>(tasks.size()), [&](int64_t i) {
    compute(tasks[static_cast<size_t>(i)]);
  });
}

} // namespace tessl::cpu
