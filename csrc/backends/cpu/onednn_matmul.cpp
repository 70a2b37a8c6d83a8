#include "backends/cpu/onednn_matmul.h"

#include <atomic>
#include <vector>

#include "backends/cpu/blocks.h"
#include "backends/cpu/dense_matrix.h"
#include "backends/cpu/matmul_epilogue.h"
#include "backends/cpu/onednn.h"
#include "backends/cpu/pieces.h"
#include "backends/cpu/scratch.h"
#include "backends/cpu/thread_pool.h"
#include "backends/cpu/tiled_matmul.h"

namespace tessl::cpu {
namespace {

constexpr int64_t least_depth = 32;  // K of one matrix of AMX
constexpr int64_t wanted_blocks = 8; // of all products together: what an unlucky thread leaves, others take

thread_local Scratch a_scratch;
thread_local Scratch b_scratch;
thread_local Scratch sums_scratch;

struct Task {
  const Matmul* product = nullptr;
  Range rows, columns;
};

DenseMatrix<uint16_t> operand(const MatrixView& view, Range rows, Range columns, Scratch& scratch) {
  const auto* first =
      static_cast<const uint16_t*>(view.data) + (rows.begin * view.strides[0] + columns.begin * view.strides[1]);
  return dense_matrix(first, view.strides, rows.size(), columns.size(), scratch);
}

bool compute(const Task& task) {
  const Matmul& p = *task.product;
  const int64_t M = task.rows.size();
  const int64_t N = task.columns.size();
  const Sums sums{sums_scratch.reserve(M * N), N};
  const auto a = operand(p.a, task.rows, {0, p.K}, a_scratch);
  const auto b = operand(p.b, {0, p.K}, task.columns, b_scratch);
  if (!onednn_product(M, N, p.K, a, b, sums.data, N)) {
    return false;
  }
  finish(p, task.rows, task.columns, sums);
  return true;
}

} // namespace

bool goes_through_onednn(const Matmul& p) {
  return p.dtype == mlx::core::bfloat16 && p.K >= least_depth && is_tiled(p) && onednn_use(OnednnType::bfloat16).used;
}

bool onednn_matmul(std::span<const Matmul> products) {
  const int64_t wanted = ceil_div(wanted_blocks, static_cast<int64_t>(products.size()));
  std::vector<Task> tasks;
  for (const Matmul& product : products) {
    for (const auto& [rows, columns] : packed_blocks(product.M, product.N, product.K, sizeof(uint16_t), wanted)) {
      tasks.push_back({&product, rows, columns});
    }
  }
  std::atomic<bool> computed{true};
  ThreadPool::instance().parallel_for(static_cast<int64_t>(tasks.size()), [&](int64_t i) {
    if (!compute(tasks[static_cast<size_t>(i)])) {
      computed.store(false, std::memory_order_relaxed);
    }
  });
  return computed;
}

} // namespace tessl::cpu
