#include "backends/cpu/quantized_matmul.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "backends/cpu/blas.h"
#include "backends/cpu/packed_rows.h"
#include "backends/cpu/thread_pool.h"
#include "backends/cpu/vector_kernels.h"

// A product is cut into tasks, each a block of the output that one thread computes from start to end. With few rows of
// x the packed weights are streamed once and decoded in registers; with more, panels of them are decoded into cache,
// each once for all rows of the block, and multiplied by BLAS. Sums are float32 and stand in `out` itself where that is
// float32. The cut depends on shapes alone, so that the number of threads does not show in the result.

namespace tessl::cpu {
namespace {

// Up to so many rows, decoding in registers (once for every 4 rows) is faster than a panel for BLAS.
constexpr int64_t max_streamed_rows = 8;

// Packed bytes that are decoded for all rows of x while they stay in L1.
constexpr int64_t streamed_bytes = 16 * 1024;

// A panel of decoded weights: 512 KiB, half of the L2 cache of recent cores.
constexpr int64_t panel_depth = 512;
constexpr int64_t max_panel_columns = 256;
constexpr int64_t min_panel_columns = 64;

// Rows of the output in one block; at the lesser, decoding is already a small part of the work.
constexpr int64_t max_block_rows = 4096;
constexpr int64_t min_block_rows = 256;

constexpr int64_t wanted_blocks = 16; // of all products together: what an unlucky thread leaves, others take

// Of columns: where a row of weights lies along them, the decoder takes multiples of 16.
constexpr int64_t alignment = 32;

// Costs are in decoded weights, about 1/4 ns each, of which a task has enough to be worth waking a thread.
constexpr int64_t min_task_cost = 32 * 1024;
constexpr int64_t converted_at_once = 64 * 1024;

// x [M, K] as float32, contiguous in k.
struct FloatRows {
  std::unique_ptr<float[]> converted;
  const float* data = nullptr;
  int64_t leading_dimension = 0;

  const float* row(int64_t m) const {
    return data + m * leading_dimension;
  }
};

struct Task {
  const QuantizedMatmul* product = nullptr;
  const FloatRows* x = nullptr;
  Range rows, columns;
};

// Float32 sums of a block, and the distance between its rows.
struct Sums {
  float* data = nullptr;
  int64_t leading_dimension = 0;

  float* row(int64_t m) const {
    return data + m * leading_dimension;
  }
};

thread_local Scratch panel_scratch;
thread_local Scratch partial_scratch;
thread_local Scratch sums_scratch;

int64_t round_up(int64_t x, int64_t multiple) {
  return ceil_div(x, multiple) * multiple;
}

bool is_streamed(const QuantizedMatmul& p) {
  return p.M <= max_streamed_rows;
}

FloatRows float_rows(const QuantizedMatmul& p) {
  const Element element = element_of(p.dtype);
  const auto [row_stride, stride] = p.x.strides;
  if (element == Element::float32 && (stride == 1 || p.K <= 1) && (row_stride >= p.K || p.M == 1)) {
    return {nullptr, static_cast<const float*>(p.x.data), p.M == 1 ? p.K : row_stride};
  }
  auto converted = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(p.M * p.K));
  const int64_t rows = std::max<int64_t>(1, converted_at_once / std::max<int64_t>(p.K, 1));
  ThreadPool::instance().parallel_for(ceil_div(p.M, rows), [&, row_stride = row_stride, stride = stride](int64_t i) {
    for (int64_t m = i * rows; m < std::min((i + 1) * rows, p.M); ++m) {
      const void* source = advance(p.x.data, element, m * row_stride);
      vector_kernels().load(element, converted.get() + m * p.K, source, stride, p.K);
    }
  });
  const float* data = converted.get();
  return {std::move(converted), data, p.K};
}

// Each row of weights gives a column of sums.
void stream_transposed(const Task& task, Sums sums) {
  const QuantizedMatmul& p = *task.product;
  PackedRows weights(p.w, p.dtype);
  const int64_t row_bytes = std::max<int64_t>(1, p.K * p.w.quantization.bits / 8);
  for_each_piece(task.columns, std::max<int64_t>(4, streamed_bytes / row_bytes), [&](Range columns) {
    weights.prepare(columns);
    for_each_piece(task.rows, max_packed_dot_rows, [&](Range rows) {
      for (int64_t n = columns.begin; n < columns.end; ++n) {
        quantized_kernels().dot_packed(
            p.w.quantization,
            sums.row(rows.begin - task.rows.begin) + (n - task.columns.begin),
            sums.leading_dimension,
            task.x->row(rows.begin),
            task.x->leading_dimension,
            weights.row(n),
            rows.size()
        );
      }
    });
  });
}

// Decodes weights [k, n] of the ready rows k, column range n.
void decode_rows(const QuantizedMatmul& p, const PackedRows& weights, Range rows, Range columns, float* panel) {
  for (int64_t i = rows.begin; i < rows.end; ++i) {
    quantized_kernels().dequantize(
        p.w.quantization, panel + (i - rows.begin) * columns.size(), weights.row(i), columns.begin, columns.size()
    );
  }
}

void fill_zeros(Sums sums, int64_t rows, int64_t columns) {
  for (int64_t m = 0; m < rows; ++m) {
    std::fill_n(sums.row(m), columns, 0.0f);
  }
}

// Each row of weights adds to all sums: some are decoded, then combined for every four rows of x.
void stream_plain(const Task& task, Sums sums) {
  constexpr int64_t depth_at_once = 32;
  const QuantizedMatmul& p = *task.product;
  const int64_t count = task.columns.size();
  PackedRows weights(p.w, p.dtype);
  float* panel = panel_scratch.reserve(depth_at_once * count);
  float* partial = partial_scratch.reserve(max_thin_rows * count);
  fill_zeros(sums, task.rows.size(), count);
  for_each_piece({0, p.K}, depth_at_once, [&](Range depth) {
    weights.prepare(depth);
    decode_rows(p, weights, depth, task.columns, panel);
    for_each_piece(task.rows, max_thin_rows, [&](Range rows) {
      vector_kernels().combine_rows(
          Element::float32,
          partial,
          count,
          task.x->row(rows.begin) + depth.begin,
          task.x->leading_dimension,
          panel,
          count,
          rows.size(),
          count,
          depth.size()
      );
      for (int64_t m = rows.begin; m < rows.end; ++m) {
        float* row = sums.row(m - task.rows.begin);
        const float* addend = partial + (m - rows.begin) * count;
        std::transform(row, row + count, addend, row, std::plus<>());
      }
    });
  });
}

// A panel is [n, k] for transposed weights, else [k, n].
void multiply_panels(const Task& task, Sums sums) {
  const QuantizedMatmul& p = *task.product;
  PackedRows weights(p.w, p.dtype);
  float* panel = panel_scratch.reserve(panel_depth * task.columns.size());
  if (p.transposed) {
    weights.prepare(task.columns);
  }
  for_each_piece({0, p.K}, panel_depth, [&](Range depth) {
    if (p.transposed) {
      decode_rows(p, weights, task.columns, depth, panel);
    } else {
      weights.prepare(depth);
      decode_rows(p, weights, depth, task.columns, panel);
    }
    sgemm(
        task.rows.size(),
        task.columns.size(),
        depth.size(),
        {task.x->row(task.rows.begin) + depth.begin, task.x->leading_dimension, false},
        {panel, p.transposed ? depth.size() : task.columns.size(), p.transposed},
        sums.data,
        sums.leading_dimension,
        depth.begin > 0
    );
  });
}

void finish(const Task& task, Sums sums) {
  const QuantizedMatmul& p = *task.product;
  const Element element = element_of(p.dtype);
  if (element == Element::float32 && !p.bias && p.activation == MATMUL_ACTIVATION_NONE) {
    return;
  }
  for (int64_t m = task.rows.begin; m < task.rows.end; ++m) {
    EpilogueRow row{.activation = p.activation, .c = {}, .bias = {}, .residual = {}};
    if (p.bias) {
      const int64_t first = m * p.bias.strides[0] + task.columns.begin * p.bias.strides[1];
      row.bias = {advance(p.bias.data, element, first), p.bias.strides[1]};
    }
    void* out = advance(p.out, element, m * p.N + task.columns.begin);
    vector_kernels().finish(element, out, sums.row(m - task.rows.begin), row, task.columns.size());
  }
}

void compute(const Task& task) {
  const QuantizedMatmul& p = *task.product;
  Sums sums{nullptr, p.N};
  if (p.dtype == mlx::core::float32) {
    sums.data = static_cast<float*>(p.out) + task.rows.begin * p.N + task.columns.begin;
  } else {
    sums = {sums_scratch.reserve(task.rows.size() * task.columns.size()), task.columns.size()};
  }
  if (p.K == 0) {
    fill_zeros(sums, task.rows.size(), task.columns.size());
  } else if (!is_streamed(p)) {
    multiply_panels(task, sums);
  } else if (p.transposed) {
    stream_transposed(task, sums);
  } else {
    stream_plain(task, sums);
  }
  finish(task, sums);
}

struct BlockShape {
  int64_t rows;
  int64_t columns;
};

// Columns first, for they share no weights; rows where columns do not suffice.
BlockShape block_shape(const QuantizedMatmul& p, int64_t wanted) {
  if (is_streamed(p)) {
    const int64_t least = ceil_div(min_task_cost, std::max<int64_t>(1, p.K * ceil_div(p.M, max_packed_dot_rows)));
    return {p.M, round_up(std::max(ceil_div(p.N, wanted), least), alignment)};
  }
  const int64_t columns = std::clamp(round_up(ceil_div(p.N, wanted), alignment), min_panel_columns, max_panel_columns);
  const int64_t row_blocks = std::max<int64_t>(1, wanted / ceil_div(p.N, columns));
  return {std::clamp(ceil_div(p.M, row_blocks), min_block_rows, max_block_rows), columns};
}

void add_tasks(std::vector<Task>& tasks, const QuantizedMatmul& p, const FloatRows& x, int64_t wanted) {
  const auto [rows, columns] = block_shape(p, wanted);
  for_each_piece({0, p.N}, columns, [&, rows = rows](Range column_block) {
    for_each_piece({0, p.M}, rows, [&](Range row_block) { tasks.push_back({&p, &x, row_block, column_block}); });
  });
}

} // namespace

void quantized_matmul(std::span<const QuantizedMatmul> products) {
  const auto count = static_cast<int64_t>(products.size());
  std::vector<FloatRows> xs;
  std::vector<Task> tasks;
  xs.reserve(products.size());
  for (const QuantizedMatmul& product : products) {
    xs.push_back(float_rows(product));
    add_tasks(tasks, product, xs.back(), ceil_div(wanted_blocks, count));
  }
  ThreadPool::instance().parallel_for(static_cast<int64_t>(tasks.size()), [&](int64_t i) {
    compute(tasks[static_cast<size_t>(i)]);
  });
}

} // namespace tessl::cpu
