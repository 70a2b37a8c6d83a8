#include "backends/cpu/matmul.h"

#include <algorithm>
#include <memory>
#include <new>
#include <vector>

#include "backends/cpu/blas.h"
#include "backends/cpu/thread_pool.h"
#include "backends/cpu/vector_kernels.h"

// A product is cut into tasks, each a block of the output (and, where the output is small and K long, a slice of K)
// that one thread computes from start to end: float32 sums by BLAS or by the thin kernels, then the epilogue while the
// sums are in cache. Sums of float32 products stand in `out` itself. Blocks begin at multiples of `alignment` and
// slices of K depend on the shape alone, so that the number of threads does not show in the result.

namespace tessl::cpu {
namespace {

constexpr int64_t alignment = 32;
constexpr int64_t max_block_columns = 1024;
constexpr int64_t max_sums = 256 * 1024; // of one panel, 1 MiB
constexpr int64_t packed_depth = 1024; // K of a panel whose operands are packed
constexpr int tasks_per_thread = 4; // what an unlucky thread leaves, others take

// Costs are in floating-point operations, about 1/80 ns each. A job below min_task_cost costs less than waking a thread.
constexpr double min_task_cost = 2e6;
constexpr double cost_per_byte = 8;
constexpr double cost_of_epilogue = 64;

// K is sliced when the outputs of all products are too few to occupy the threads.
constexpr int64_t min_slice = 4096;
constexpr int64_t max_slices = 16;
constexpr int64_t max_sliced_outputs = 128 * 128;

struct Range {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const {
    return end - begin;
  }
};

struct Task {
  const Matmul* product;
  Range rows, columns, depth;
  float* partial_sums = nullptr; // [M, N] of this slice of K; null when the task covers all of K
};

int64_t ceil_div(int64_t x, int64_t y) {
  return (x + y - 1) / y;
}

int64_t round_up(int64_t x, int64_t multiple) {
  return ceil_div(x, multiple) * multiple;
}

// The size of aligned blocks when `extent` is cut into `pieces`.
int64_t block_size(int64_t extent, int64_t pieces) {
  return std::min(extent, round_up(ceil_div(extent, pieces), alignment));
}

Element element_of(mlx::core::Dtype dtype) {
  return dtype == mlx::core::float32 ? Element::float32
      : dtype == mlx::core::float16  ? Element::float16
                                     : Element::bfloat16;
}

int64_t size_of(Element element) {
  return element == Element::float32 ? 4 : 2;
}

const void* advance(const void* data, Element element, int64_t count) {
  return static_cast<const char*>(data) + count * size_of(element);
}

void* advance(void* data, Element element, int64_t count) {
  return static_cast<char*>(data) + count * size_of(element);
}

// Memory of one thread that lasts between tasks.
class Scratch {
 public:
  float* reserve(int64_t count) {
    if (count > capacity_) {
      data_.reset();
      data_.reset(static_cast<float*>(::operator new(static_cast<size_t>(count) * sizeof(float), line)));
      capacity_ = count;
    }
    return data_.get();
  }

 private:
  static constexpr std::align_val_t line{64};
  struct Free {
    void operator()(float* data) const {
      ::operator delete(data, line);
    }
  };

  std::unique_ptr<float, Free> data_;
  int64_t capacity_ = 0;
};

thread_local Scratch a_scratch;
thread_local Scratch b_scratch;
thread_local Scratch sums_scratch;

MatrixView transposed(const MatrixView& view) {
  return {view.data, {view.strides[1], view.strides[0]}};
}

// A product with one column is computed as its transpose, which has one row: out [M, 1] and out [1, M] are the same.
Matmul oriented(const Matmul& product) {
  if (product.N != 1 || product.M == 1) {
    return product;
  }
  Matmul t = product;
  std::swap(t.M, t.N);
  t.a = transposed(product.b);
  t.b = transposed(product.a);
  t.c = transposed(product.c);
  t.bias = transposed(product.bias);
  t.residual = transposed(product.residual);
  return t;
}

bool steps_by_one(int64_t stride, int64_t extent) {
  return stride == 1 || extent == 1;
}

// Few rows: every element of b is used so seldom that it is streamed once instead of packed for BLAS.
bool is_thin(const Matmul& p) {
  return p.M <= max_thin_rows && (steps_by_one(p.b.strides[0], p.K) || steps_by_one(p.b.strides[1], p.N));
}

bool has_epilogue(const Matmul& p) {
  return p.alpha != 1.0f || (p.c && p.beta != 0.0f) || p.bias || p.residual ||
      p.activation != MATMUL_ACTIVATION_NONE;
}

double cost(const Matmul& p) {
  const auto M = static_cast<double>(p.M);
  const auto N = static_cast<double>(p.N);
  const auto K = static_cast<double>(p.K);
  const auto bytes = static_cast<double>(size_of(element_of(p.dtype))) * (M * K + K * N);
  return M * N * (2 * K + cost_of_epilogue) + bytes * cost_per_byte;
}

// ---- sums ----

// Rows `rows` and columns `columns` of a matrix as BLAS takes it: in place when it is float32 with one stride of 1 and
// the other one positive, else packed into `scratch` as float32.
BlasOperand blas_operand(const MatrixView& view, Element element, Range rows, Range columns, Scratch& scratch) {
  const void* source =
      advance(view.data, element, rows.begin * view.strides[0] + columns.begin * view.strides[1]);
  int64_t outer = rows.size();
  int64_t inner = columns.size();
  int64_t outer_stride = view.strides[0];
  int64_t inner_stride = view.strides[1];
  const bool transposed = !steps_by_one(inner_stride, inner) &&
      (steps_by_one(outer_stride, outer) || std::abs(outer_stride) < std::abs(inner_stride));
  if (transposed) {
    std::swap(outer, inner);
    std::swap(outer_stride, inner_stride);
  }
  if (element == Element::float32 && steps_by_one(inner_stride, inner)) {
    const int64_t leading = outer == 1 ? inner : outer_stride;
    if (leading >= inner && leading <= max_blas_dimension) {
      return {static_cast<const float*>(source), leading, transposed};
    }
  }
  float* packed = scratch.reserve(outer * inner);
  for (int64_t i = 0; i < outer; ++i) {
    const void* row = advance(source, element, i * outer_stride);
    vector_kernels().load(element, packed + i * inner, row, inner_stride, inner);
  }
  return {packed, inner, transposed};
}

bool in_place(const BlasOperand& operand, const MatrixView& view) {
  (void)view;
  return operand.data != nullptr;
}

} // namespace
} // namespace tessl::cpu
