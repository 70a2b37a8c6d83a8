#include "ops/sparse_max_pool_plan.h"

#include <array>
#include <limits>

#include "launch/gemm_tiles.h"
#include "launch/typed_kernels.h"
#include "ops/copy_plan.h"

namespace tessl {
namespace {

constexpr int32_t tile_words = 64;
constexpr int32_t short_row = 32; // tokens of the smaller of the portable tiles

// An operand as the kernels read it: units contiguous, the other dimensions by their strides.
struct PlacedRows {
  Argument argument;
  int64_t offset = 0; // bytes from the start of its buffer
  mlx::core::Shape shape;
  mlx::core::Strides strides;
};

PlacedRows place(Plan& plan, const Operand& x, uint8_t input, size_t itemsize) {
  PlacedRows placed{Argument::input(input), x.offset, x.shape, x.strides};
  const size_t last = x.shape.size() - 1;
  size_t count = 1;
  for (const auto extent : x.shape) {
    count *= static_cast<size_t>(extent);
  }
  const bool contiguous = x.strides[last] == 1 || x.shape[last] == 1;
  if (!contiguous && count > 0) {
    const Argument copy = plan.add_scratch(count * itemsize);
    add_copy(plan, itemsize, placed.argument, x.offset, copy, x.shape, x.strides);
    placed.argument = Argument::scratch_in(copy.index);
    placed.offset = 0;
    placed.strides[last] = 1;
    for (size_t d = last; d-- > 0;) {
      placed.strides[d] = placed.strides[d + 1] * placed.shape[d + 1];
    }
  }
  // What is not stepped along steps as if it were contiguous.
  for (size_t d = last; d-- > 0;) {
    if (placed.shape[d] == 1) {
      placed.strides[d] = placed.shape[last];
    }
  }
  return placed;
}

// Whether each run of `run` units that starts at a multiple of it starts on a boundary of that many.
bool starts_runs(const PlacedRows& x, int64_t run, size_t itemsize) {
  bool starts = x.offset % (run * static_cast<int64_t>(itemsize)) == 0;
  for (size_t d = 0; d + 1 < x.strides.size(); ++d) {
    starts = starts && x.strides[d] % run == 0;
  }
  return starts;
}

// What matmul2d reads in place: see tensorops_obstacle in matmul_plan.cpp.
constexpr int64_t tensorops_alignment = 16;
constexpr int64_t tensorops_reach = int64_t{1} << 31;

const char* obstacle_of(const PlacedRows& x, size_t itemsize) {
  const int64_t stride = x.strides[x.strides.size() - 2];
  if (!starts_runs(x, tensorops_alignment / static_cast<int64_t>(itemsize), itemsize)) {
    return "a row of an operand does not start on 16 bytes";
  }
  if (stride <= 0) {
    return "the rows of an operand overlap or run backwards";
  }
  if (stride > std::numeric_limits<int32_t>::max() || tile_words * stride * int64_t(itemsize) >= tensorops_reach) {
    return "the rows of an operand are so far apart that a tile spans 2 GB";
  }
  return nullptr;
}

struct Placement {
  PlacedRows hidden, weight;
  const char* obstacle = nullptr;
};

Placement place_operands(Plan& plan, const SparseMaxPoolProblem& problem, const DeviceProfile& device) {
  const size_t itemsize = problem.dtype.size();
  Placement placement{place(plan, problem.hidden, 0, itemsize), place(plan, problem.weight, 1, itemsize), nullptr};
  if (!device.has(Capability::tensorops)) {
    placement.obstacle = "the device has no matrix unit that its macOS lets us use";
  }
  for (const auto* operand : {&placement.hidden, &placement.weight}) {
    if (!placement.obstacle) {
      placement.obstacle = obstacle_of(*operand, itemsize);
    }
  }
  return placement;
}

const Kernel* tensorops_kernel(const SparseMaxPoolProblem& problem) {
  static const auto named = [](const char* dtype) {
    return intern_kernel(
        std::string("sparse_max_pool_tensorops_") + dtype, "sparse_max_pool_tensorops", Capability::tensorops
    );
  };
  static const std::array kernels{named("float32"), named("float32_relaxed"), named("float16"), named("bfloat16")};
  if (problem.dtype == mlx::core::float32) {
    return kernels[problem.relaxed];
  }
  return kernels[problem.dtype == mlx::core::float16 ? 2 : 3];
}

const Kernel* portable_kernel(const SparseMaxPoolProblem& problem) {
  static const TypedKernels longer("sparse_max_pool_portable_64", "sparse_max_pool");
  static const TypedKernels shorter("sparse_max_pool_portable_32", "sparse_max_pool");
  return (problem.hidden.shape[1] <= short_row ? shorter : longer).of(problem.dtype);
}

void add_constants(Launch& launch, const SparseMaxPoolProblem& problem, const Placement& operands) {
  const size_t itemsize = problem.dtype.size();
  launch.constants = {
      FunctionConstant::boolean(20, problem.lengths.has_value()),
      FunctionConstant::boolean(21, problem.bias.has_value()),
  };
  if (operands.obstacle) {
    launch.constants.push_back(FunctionConstant::boolean(22, starts_runs(operands.hidden, 4, itemsize)));
    launch.constants.push_back(FunctionConstant::boolean(23, starts_runs(operands.weight, 4, itemsize)));
  }
  launch.constants.push_back(FunctionConstant::int32(24, problem.activation));
  launch.constants.push_back(FunctionConstant::boolean(25, problem.sums));
  launch.constants.push_back(FunctionConstant::boolean(26, problem.hidden.shape[1] > 0));
}

} // namespace

const char* tensorops_obstacle(const SparseMaxPoolProblem& problem, const DeviceProfile& device) {
  Plan plan;
  return place_operands(plan, problem, device).obstacle;
}

Plan plan_sparse_max_pool(const SparseMaxPoolProblem& problem, const DeviceProfile& device) {
  const auto rows = problem.hidden.shape[0];
  const auto words = problem.weight.shape[0];
  Plan plan;
  if (rows == 0 || words == 0) {
    return plan;
  }
  const Placement operands = place_operands(plan, problem, device);
  plan.launches.push_back({});
  Launch& launch = plan.launches.back();
  launch.kernel = operands.obstacle ? portable_kernel(problem) : tensorops_kernel(problem);
  add_constants(launch, problem, operands);

  uint8_t input = 2;
  const auto optional = [&](const std::optional<Operand>& x) {
    return x ? Argument::input(input++) : Argument::unused();
  };
  const Argument bias = optional(problem.bias);
  const Argument lengths = optional(problem.lengths);
  const auto bound = [&](const Argument& argument) {
    return problem.hidden.shape[1] > 0 ? argument : Argument::unused();
  };
  launch.arguments = {bound(operands.hidden.argument), bound(operands.weight.argument), Argument::output(0)};
  launch.push_bytes(
      SparseMaxPoolArgs{
          problem.hidden.shape[1],
          words,
          problem.hidden.shape[2],
          0,
          operands.hidden.strides[0],
          operands.hidden.strides[1],
          operands.weight.strides[0],
          problem.bias ? problem.bias->strides[0] : 0,
          problem.lengths ? problem.lengths->strides[0] : 0,
      }
  );
  launch.arguments.push_back(lengths);
  launch.arguments.push_back(bias);
  launch.group = {128, 1, 1};
  launch.grid = {static_cast<uint32_t>(tile_count(words, tile_words)), static_cast<uint32_t>(rows), 1};
  return plan;
}

} // namespace tessl
