#include "backends/cpu/matmul.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "backends/cpu/blas.h"
#include "backends/cpu/dense_matrix.h"
#include "backends/cpu/elements.h"
#include "backends/cpu/matmul_epilogue.h"
#include "backends/cpu/onednn_matmul.h"
#include "backends/cpu/pieces.h"
#include "backends/cpu/scratch.h"
#include "backends/cpu/thread_pool.h"
#include "backends/cpu/tiled_matmul.h"
#include "backends/cpu/vector_kernels.h"

// Large products are packed as a whole and tiled (see tiled_matmul.h), or, of bfloat16 on a CPU with matrix units, go
// through oneDNN (see onednn_matmul.h). The others are here.
//
// A product is cut into tasks, each a block of the output (and, where the output is small and K long, a slice of K)
// that one thread computes from start to end: float32 sums, by BLAS or by the thin kernels, then the epilogue while
// they are in cache. Sums of a float32 product stand in `out` itself. BLAS rounds an element as its place in a block
// decides: the cut depends on shapes alone, so that the number of threads does not show in the result.

namespace tessl::cpu {
namespace {

constexpr int64_t alignment = 32;     // of blocks
constexpr int64_t wanted_blocks = 16; // of all products together: what an unlucky thread leaves, others take
constexpr int64_t max_block_columns = 1024;

// Sums that BLAS computes before the epilogue passes over them (1 MiB), and K of the operands it gets at once.
constexpr int64_t max_panel = 256 * 1024;
constexpr int64_t max_panel_rows = 1024;
constexpr int64_t blas_depth = 1024;

// Rows whose float32 copies a thin task keeps, and elements of b that it goes over for all of them (256 KiB).
constexpr int64_t thin_panel_rows = 64;
constexpr int64_t thin_cache = 64 * 1024;

// Costs are in floating-point operations, about 1/80 ns each. Waking a thread costs about as much as the least task.
// BLAS packs its operands again for each block: of 2e7, 6e7 and 1e8, 6e7 encoded short texts the fastest, 6 % over 2e7.
constexpr double min_task_cost = 2e6;
constexpr double min_blas_cost = 6e7;
constexpr double max_task_cost = 1e9;
constexpr double cost_per_byte = 8;
constexpr double cost_of_epilogue = 64;

// When K is sliced: see slice_count.
constexpr int64_t min_combined_columns = 1024;
constexpr int64_t min_slice = 4096;
constexpr int64_t max_slices = 16;
constexpr int64_t max_sliced_outputs = 128 * 128;

struct Task {
  const Matmul* product = nullptr;
  Range rows, columns, depth;
  float* partial_sums = nullptr; // [M, N], of this slice of K; null when the task covers all of K
};

// A product whose K is sliced: its partial sums are [slices, M, N].
struct SlicedProduct {
  const Matmul* product = nullptr;
  int64_t slices = 0;
  std::unique_ptr<float[]> partial_sums;
};

struct Work {
  std::vector<Task> tasks;
  std::vector<SlicedProduct> sliced;
  double cost = 0;
};

// The length of aligned pieces when `extent` is cut into `count` of them.
int64_t piece_length(int64_t extent, int64_t count) {
  return std::min(extent, ceil_div(ceil_div(extent, count), alignment) * alignment);
}

thread_local Scratch a_scratch;
thread_local Scratch b_scratch;
thread_local Scratch sums_scratch;

// The same product in the form that is computed: without a `c` that must not be read, and one with a single column as
// its transpose, which has a single row: out [M, 1] and out [1, M] are the same. (Batch invariance needs the layout of
// a to have no say in the kernel.)
Matmul normalized(Matmul p) {
  if (p.beta == 0.0f) {
    p.c = {};
  }
  if (p.N == 1 && p.M != 1 && !p.batch_invariant) {
    std::swap(p.M, p.N);
    std::swap(p.a, p.b);
    for (MatrixView* view : {&p.a, &p.b, &p.c, &p.bias, &p.residual}) {
      std::swap(view->strides[0], view->strides[1]);
    }
  }
  return p;
}

// With few rows an element of b is used so seldom that b is better streamed than packed for BLAS. In the thin kernels a
// row's sums are made without regard to the other rows, which BLAS does not promise.
bool is_thin(const Matmul& p) {
  const bool streams = steps_by_one(p.b.strides[0], p.K) || steps_by_one(p.b.strides[1], p.N);
  return p.batch_invariant || (p.M <= max_thin_rows && streams);
}

// Whether rows of b are streamed, weighted by a: fast where they are long.
bool combines_rows(const Matmul& p) {
  return p.M <= max_thin_rows && is_thin(p) && !steps_by_one(p.b.strides[0], p.K);
}

// Rows and columns of a matrix as BLAS takes them: in place when they are float32 with one stride of 1 and the other
// long enough, else converted into `scratch`.
BlasOperand blas_operand(const MatrixView& view, Element element, Range rows, Range columns, Scratch& scratch) {
  const void* source = advance(view.data, element, rows.begin * view.strides[0] + columns.begin * view.strides[1]);
  const Orientation lie(view.strides, rows.size(), columns.size());
  if (element == Element::float32 && lie.is_dense() && lie.leading_dimension() <= max_blas_dimension) {
    return {static_cast<const float*>(source), lie.leading_dimension(), lie.transposed};
  }
  float* converted = scratch.reserve(lie.outer * lie.inner);
  for (int64_t i = 0; i < lie.outer; ++i) {
    const void* row = advance(source, element, i * lie.outer_stride);
    vector_kernels().load(element, converted + i * lie.inner, row, lie.inner_stride, lie.inner);
  }
  return {converted, lie.inner, lie.transposed};
}

// The sums of one block, panel after panel of its rows.
class BlockSums {
 public:
  BlockSums(const Matmul& p, Range columns, Range depth)
      : p_(p), thin_(is_thin(p)), element_(element_of(p.dtype)), columns_(columns), depth_(depth) {
  }

  int64_t panel_rows() const {
    if (thin_) {
      return thin_panel_rows;
    }
    return std::clamp(max_panel / columns_.size() / alignment * alignment, alignment, max_panel_rows);
  }

  void compute(Range rows, Sums sums) {
    if (thin_) {
      compute_thin(rows, sums);
    } else {
      compute_blas(rows, sums);
    }
  }

 private:
  // b is converted once for all panels, unless K takes several slices.
  void compute_blas(Range rows, Sums sums) {
    for_each_piece(depth_, blas_depth, [&](Range slice) {
      if (slice.begin != b_slice_) {
        b_ = blas_operand(p_.b, element_, slice, columns_, b_scratch);
        b_slice_ = slice.begin;
      }
      const BlasOperand a = blas_operand(p_.a, element_, rows, slice, a_scratch);
      const bool accumulate = slice.begin != depth_.begin;
      sgemm(rows.size(), columns_.size(), slice.size(), a, b_, sums.data, sums.leading_dimension, accumulate);
    });
  }

  void compute_thin(Range rows, Sums sums) {
    const ThinRows a = thin_rows(rows);
    const int64_t cached = std::max(alignment, thin_cache / depth_.size() / alignment * alignment);
    for_each_piece(columns_, rows.size() <= max_thin_rows ? columns_.size() : cached, [&](Range columns) {
      for_each_piece({0, rows.size()}, max_thin_rows, [&](Range group) {
        stream(
            {sums.row(group.begin) + (columns.begin - columns_.begin), sums.leading_dimension},
            {a.data + group.begin * a.leading_dimension, a.leading_dimension},
            group.size(),
            columns
        );
      });
    });
  }

  struct ThinRows {
    const float* data = nullptr;
    int64_t leading_dimension = 0;
  };

  // Rows of a, contiguous in k, as float32.
  ThinRows thin_rows(Range rows) const {
    const auto [row_stride, k_stride] = p_.a.strides;
    const void* source = advance(p_.a.data, element_, rows.begin * row_stride + depth_.begin * k_stride);
    if (element_ == Element::float32 && steps_by_one(k_stride, p_.K)) {
      return {static_cast<const float*>(source), row_stride};
    }
    float* converted = a_scratch.reserve(rows.size() * depth_.size());
    for (int64_t m = 0; m < rows.size(); ++m) {
      const void* row = advance(source, element_, m * row_stride);
      vector_kernels().load(element_, converted + m * depth_.size(), row, k_stride, depth_.size());
    }
    return {converted, depth_.size()};
  }

  // Sums of at most max_thin_rows rows of a, b being read as it stands; gathered where neither of its strides is 1.
  void stream(Sums sums, ThinRows a, int64_t M, Range columns) const {
    const auto [k_stride, column_stride] = p_.b.strides;
    const void* b = advance(p_.b.data, element_, depth_.begin * k_stride + columns.begin * column_stride);
    const auto& kernels = vector_kernels();
    const int64_t N = columns.size();
    const int64_t K = depth_.size();
    if (steps_by_one(k_stride, p_.K)) {
      kernels.dot_rows(
          element_, sums.data, sums.leading_dimension, a.data, a.leading_dimension, b, column_stride, M, N, K
      );
    } else if (steps_by_one(column_stride, p_.N)) {
      kernels.combine_rows(
          element_, sums.data, sums.leading_dimension, a.data, a.leading_dimension, b, k_stride, M, N, K
      );
    } else {
      float* gathered = b_scratch.reserve(N * K);
      for (int64_t n = 0; n < N; ++n) {
        kernels.load(element_, gathered + n * K, advance(b, element_, n * column_stride), k_stride, K);
      }
      kernels.dot_rows(
          Element::float32, sums.data, sums.leading_dimension, a.data, a.leading_dimension, gathered, K, M, N, K
      );
    }
  }

  const Matmul& p_;
  const bool thin_;
  const Element element_;
  const Range columns_;
  const Range depth_;
  BlasOperand b_;
  int64_t b_slice_ = -1;
};

Sums sums_of(const Task& task, const Matmul& p, Range rows) {
  const int64_t first = rows.begin * p.N + task.columns.begin;
  if (task.partial_sums != nullptr) {
    return {task.partial_sums + first, p.N};
  }
  if (p.dtype == mlx::core::float32) {
    return {static_cast<float*>(p.out) + first, p.N};
  }
  return {sums_scratch.reserve(rows.size() * task.columns.size()), task.columns.size()};
}

void compute(const Task& task) {
  const Matmul& p = *task.product;
  BlockSums block(p, task.columns, task.depth);
  for_each_piece(task.rows, block.panel_rows(), [&](Range rows) {
    const Sums sums = sums_of(task, p, rows);
    if (p.K > 0) {
      block.compute(rows, sums);
    } else {
      for (int64_t i = 0; i < rows.size(); ++i) {
        std::fill_n(sums.row(i), task.columns.size(), 0.0f);
      }
    }
    if (task.partial_sums == nullptr) {
      finish(p, rows, task.columns, sums);
    }
  });
}

void finish_sliced(const SlicedProduct& sliced) {
  const Matmul& p = *sliced.product;
  const int64_t outputs = p.M * p.N;
  float* sums = sliced.partial_sums.get();
  for (int64_t slice = 1; slice < sliced.slices; ++slice) {
    const float* partial = sums + slice * outputs;
    std::transform(sums, sums + outputs, partial, sums, std::plus<>());
  }
  if (p.dtype == mlx::core::float32) {
    std::copy_n(sums, outputs, static_cast<float*>(p.out));
  }
  finish(p, {0, p.M}, {0, p.N}, {sums, p.N});
}

double cost(const Matmul& p, int64_t rows, int64_t columns) {
  const auto M = static_cast<double>(rows);
  const auto N = static_cast<double>(columns);
  const auto K = static_cast<double>(p.K);
  return M * N * (2 * K + cost_of_epilogue) +
         (M + N) * K * static_cast<double>(size_of(element_of(p.dtype))) * cost_per_byte;
}

struct BlockShape {
  int64_t rows;
  int64_t columns;
};

// The longer side is halved until there are enough blocks, or none of them takes long.
BlockShape block_shape(const Matmul& p, int64_t wanted) {
  BlockShape block{p.M, is_thin(p) ? p.N : piece_length(p.N, ceil_div(p.N, max_block_columns))};
  const double min_cost = is_thin(p) ? min_task_cost : min_blas_cost;
  const int64_t min_side = combines_rows(p) ? min_combined_columns : alignment;
  for (;;) {
    const int64_t count = ceil_div(p.M, block.rows) * ceil_div(p.N, block.columns);
    const double block_cost = cost(p, block.rows, block.columns);
    const bool divisible = std::max(block.rows, block.columns) >= 2 * min_side && block_cost >= 2 * min_cost;
    if (!divisible || (count >= wanted && block_cost <= max_task_cost)) {
      return block;
    }
    int64_t& side = block.rows > block.columns ? block.rows : block.columns;
    side = piece_length(side, 2);
  }
}

// Slices of K, for outputs that are too few to occupy the threads, or too narrow to be read with speed.
int64_t slice_count(const Matmul& p, int64_t blocks, int64_t wanted) {
  if (blocks >= wanted || p.batch_invariant) {
    return 1;
  }
  if (combines_rows(p)) {
    const auto affordable = static_cast<int64_t>(cost(p, p.M, p.N) / static_cast<double>(blocks) / min_task_cost);
    return std::clamp<int64_t>(affordable, 1, ceil_div(wanted, blocks));
  }
  return p.M * p.N > max_sliced_outputs ? 1 : std::clamp<int64_t>(p.K / min_slice, 1, max_slices);
}

void add_product(Work& work, const Matmul& p, int64_t wanted) {
  if (p.M == 0 || p.N == 0) {
    return;
  }
  const auto [block_rows, block_columns] = block_shape(p, wanted);
  const int64_t blocks = ceil_div(p.M, block_rows) * ceil_div(p.N, block_columns);
  const int64_t slice = piece_length(p.K, slice_count(p, blocks, wanted));
  const bool sliced = slice < p.K;
  float* partial_sums = nullptr;
  if (sliced) {
    const int64_t slices = ceil_div(p.K, slice);
    auto sums = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(slices * p.M * p.N));
    partial_sums = sums.get();
    work.sliced.push_back({&p, slices, std::move(sums)});
  }
  for_each_piece({0, p.N}, block_columns, [&](Range columns) {
    for_each_piece({0, p.M}, block_rows, [&](Range rows) {
      if (!sliced) {
        work.tasks.push_back({&p, rows, columns, {0, p.K}, nullptr});
        return;
      }
      for_each_piece({0, p.K}, slice, [&](Range depth) {
        work.tasks.push_back({&p, rows, columns, depth, partial_sums + depth.begin / slice * p.M * p.N});
      });
    });
  });
  work.cost += cost(p, p.M, p.N);
}

// Products that are thin, small or long: each block is a call of BLAS or of the thin kernels.
void compute_blocks(std::span<const Matmul> products) {
  Work work;
  const auto count = static_cast<int64_t>(products.size());
  for (const Matmul& product : products) {
    add_product(work, product, ceil_div(wanted_blocks, count));
  }
  const auto tasks = static_cast<int64_t>(work.tasks.size());
  if (tasks == 0) {
    return;
  }
  const double task_cost = work.cost / static_cast<double>(tasks);
  const auto group = static_cast<int64_t>(std::clamp(min_task_cost / task_cost, 1.0, static_cast<double>(tasks)));
  ThreadPool::instance().parallel_for(ceil_div(tasks, group), [&](int64_t index) {
    for (int64_t i = index * group; i < std::min((index + 1) * group, tasks); ++i) {
      compute(work.tasks[static_cast<size_t>(i)]);
    }
  });
  for (const SlicedProduct& sliced : work.sliced) {
    finish_sliced(sliced);
  }
}

} // namespace

void matmul(std::span<const Matmul> products) {
  std::vector<Matmul> normal;
  normal.reserve(products.size());
  std::transform(products.begin(), products.end(), std::back_inserter(normal), normalized);
  if (normal.empty()) {
    return;
  }
  const Matmul& any = normal.front(); // products of a batch are of one shape
  if (goes_through_onednn(any) && onednn_matmul(normal)) {
    return;
  }
  if (is_tiled(any)) {
    tiled_matmul(normal);
  } else {
    compute_blocks(normal);
  }
}

} // namespace tessl::cpu
