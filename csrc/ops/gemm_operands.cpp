#include "ops/gemm_operands.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <span>

#include "ops/operand_copy.h"

namespace tessl {
namespace {

constexpr int64_t int32_limit = std::numeric_limits<int32_t>::max();

bool is_readable(const MatmulOperand& x) {
  return x.col_stride == 1 || x.row_stride == 1;
}

// Transposed when only its rows are contiguous, or, in neither case, when its rows are the closer together.
bool is_transposed(const MatmulOperand& x) {
  return x.col_stride != 1 && (x.row_stride == 1 || std::abs(x.row_stride) < std::abs(x.col_stride));
}

StoredMatrix stored_in_place(const MatmulOperand& x, int32_t rows, int32_t columns, bool transposed) {
  return {
      Argument::input(x.input),
      x.offset,
      transposed,
      transposed ? columns : rows,
      transposed ? rows : columns,
      transposed ? x.col_stride : x.row_stride,
      x.batch_strides
  };
}

// A copy of x without gaps, row by row or column by column.
StoredMatrix add_copy_of(
    Plan& plan, const MatmulProblem& problem, const MatmulOperand& x, int32_t rows, int32_t columns, bool transposed
) {
  const auto copy = add_operand_copy(plan, problem, x, rows, columns, transposed, problem.dtype.size());
  StoredMatrix stored = stored_in_place(x, rows, columns, transposed);
  stored.argument = copy.argument;
  stored.offset = 0;
  stored.stride = stored.width;
  stored.batch_strides = copy.batch_strides;
  return stored;
}

// Whether each multiple of `run` elements along a contiguous line starts on a boundary of that many.
bool starts_runs(
    int64_t offset, int64_t line_stride, std::span<const int64_t> batch_strides, int64_t run, size_t itemsize
) {
  return offset % (run * static_cast<int64_t>(itemsize)) == 0 && line_stride % run == 0 &&
         std::all_of(batch_strides.begin(), batch_strides.end(), [&](int64_t stride) { return stride % run == 0; });
}

// matmul2d takes operands on 16 bytes (tessl checks the base and each batch start; a tile then starts on 16 bytes too,
// for its origin is a multiple of 64 elements in both directions), strides that are int and, so that no address
// within a tile is 2 GB from its origin (llama.cpp issue 28748), not longer than that. Strides of 0 or less are not
// known to work. A tile has at most 256 lines.
constexpr int64_t tensorops_alignment = 16;
constexpr int64_t tensorops_lines = 256;
constexpr int64_t tensorops_reach = int64_t{1} << 31;

const char* tensorops_obstacle(const StoredMatrix& x, size_t itemsize) {
  const int64_t run = tensorops_alignment / static_cast<int64_t>(itemsize);
  if (!starts_runs(x.offset, 0, {x.batch_strides.begin(), x.batch_strides.size()}, run, itemsize)) {
    return "an operand, or a member of its batch, does not start on 16 bytes";
  }
  if (x.stride <= 0) {
    return "the rows of an operand overlap or run backwards";
  }
  const int64_t lines = std::min<int64_t>(x.lines, tensorops_lines);
  if (x.stride > int32_limit || lines * x.stride * static_cast<int64_t>(itemsize) >= tensorops_reach) {
    return "the rows of an operand are so far apart that a tile spans 2 GB";
  }
  return nullptr;
}

// Where a row must not depend on other rows, neither may the kernel, and what M or the batch decides must not count. An
// operand that cannot be read in place is copied row by row, which helps when K and N are of whole 16 bytes and a tile
// of such rows is in reach; otherwise the portable kernel takes all.
const char* batch_invariance_obstacle(const MatmulProblem& problem) {
  const int64_t itemsize = problem.dtype.size();
  const int64_t longest = std::max(problem.N, problem.K);
  if (problem.N * itemsize % tensorops_alignment != 0 || problem.K * itemsize % tensorops_alignment != 0) {
    return "batch invariance, with N or K not of whole 16 bytes";
  }
  if (tensorops_lines * longest * itemsize >= tensorops_reach) {
    return "batch invariance, with N or K so long that a tile spans 2 GB";
  }
  return nullptr;
}

void copy_strides(const FixedVector<int64_t, MATMUL_MAX_BATCH_DIMS>& from, int64_t* to) {
  std::copy(from.begin(), from.end(), to);
}

} // namespace

bool starts_runs_of_four(const StoredMatrix& x, size_t itemsize) {
  return starts_runs(x.offset, x.stride, {x.batch_strides.begin(), x.batch_strides.size()}, 4, itemsize);
}

bool starts_runs_of_four(const MatmulOperand& x, size_t itemsize) {
  return x.col_stride == 1 &&
         starts_runs(x.offset, x.row_stride, {x.batch_strides.begin(), x.batch_strides.size()}, 4, itemsize);
}

Placement place_operands(Plan& plan, const MatmulProblem& problem, const DeviceProfile& device) {
  const size_t itemsize = problem.dtype.size();
  const char* obstacle = nullptr;
  if (!device.has(Capability::tensorops)) {
    obstacle = "the device has no matrix unit that its macOS lets us use";
  } else if (problem.batch_invariant) {
    obstacle = batch_invariance_obstacle(problem);
  }
  const bool only_tensorops = problem.batch_invariant && !obstacle;

  auto place = [&](const MatmulOperand& x, int32_t rows, int32_t columns) {
    const auto stored = stored_in_place(x, rows, columns, is_transposed(x));
    const bool readable = is_readable(x) && !(only_tensorops && tensorops_obstacle(stored, itemsize));
    if (readable || problem.K == 0) {
      return stored;
    }
    return add_copy_of(plan, problem, x, rows, columns, stored.transposed && !only_tensorops);
  };
  Placement placement{place(problem.a, problem.M, problem.K), place(problem.b, problem.K, problem.N), obstacle};
  for (const auto* stored : {&placement.a, &placement.b}) {
    if (!placement.obstacle && problem.K > 0) {
      placement.obstacle = tensorops_obstacle(*stored, itemsize);
    }
  }
  return placement;
}

GemmLayout layout_of(const Placement& operands) {
  if (operands.a.transposed) {
    return operands.b.transposed ? GemmLayout::tt : GemmLayout::tn;
  }
  return operands.b.transposed ? GemmLayout::nt : GemmLayout::nn;
}

MatmulAddend addend_args(const std::optional<MatmulOperand>& x) {
  MatmulAddend addend{};
  if (x) {
    addend.row_stride = x->row_stride;
    addend.col_stride = x->col_stride;
    copy_strides(x->batch_strides, addend.batch_strides);
  }
  return addend;
}

MatmulArgs operand_args(const MatmulProblem& problem, const Placement& operands, const Tiling& tiling) {
  MatmulArgs args{};
  args.M = problem.M;
  args.N = problem.N;
  args.K = problem.K;
  args.batch_ndim = static_cast<int32_t>(problem.batch_shape.size());
  args.tiles_m = tiling.tiles_m;
  args.tiles_n = tiling.tiles_n;
  args.walk_width = tiling.walk_width;
  args.partition_k = std::max(tiling.partition_k, 1);
  args.alpha = problem.epilogue.alpha;
  args.beta = problem.epilogue.beta;
  args.lda = operands.a.stride;
  args.ldb = operands.b.stride;
  std::copy(problem.batch_shape.begin(), problem.batch_shape.end(), args.batch_shape);
  copy_strides(operands.a.batch_strides, args.a_batch_strides);
  copy_strides(operands.b.batch_strides, args.b_batch_strides);
  return args;
}

} // namespace tessl
