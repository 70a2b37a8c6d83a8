#include "ops/matmul_plan.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <span>
#include <string>
#include <utility>

#include "launch/decimal.h"
#include "launch/gemm_tiles.h"
#include "ops/gemm_operands.h"

namespace tessl {
namespace {

GemmPrecision precision_of(const MatmulProblem& problem) {
  if (problem.dtype == mlx::core::float16) {
    return GemmPrecision::float16;
  }
  if (problem.dtype == mlx::core::bfloat16) {
    return GemmPrecision::bfloat16;
  }
  return problem.relaxed ? GemmPrecision::float32_relaxed : GemmPrecision::float32;
}

constexpr size_t layout_count = 4;
constexpr size_t precision_count = 4;
constexpr std::array<const char*, layout_count> layout_names{"nn", "nt", "tn", "tt"};
constexpr std::array<const char*, precision_count> precision_names{"float32", "float32_relaxed", "float16", "bfloat16"};

// The tiled kernels of one family by layout, precision and tile. Those that store partial sums, which are float32, have
// names of their own where the operands are not float32.
template <size_t Tiles>
class KernelTable {
 public:
  KernelTable(
      const char* variant,
      const char* family,
      Capability capability,
      const std::array<GemmTile, Tiles>& tiles,
      bool partial_sums
  )
      : tiles_(tiles) {
    for (size_t layout = 0; layout < layout_count; ++layout) {
      for (size_t precision = 0; precision < precision_count; ++precision) {
        for (size_t tile = 0; tile < Tiles; ++tile) {
          const bool portable = capability == Capability::portable;
          const bool relaxed = precision == static_cast<size_t>(GemmPrecision::float32_relaxed);
          const bool is_float32 = relaxed || precision == static_cast<size_t>(GemmPrecision::float32);
          const auto* dtype = precision_names[portable && relaxed ? 0 : precision];
          const std::string name = std::string("matmul_") + variant + "_" + layout_names[layout] + "_" + dtype +
                                   (partial_sums && !is_float32 ? "_sums_" : "_") + decimal(tiles[tile].m) + "x" +
                                   decimal(tiles[tile].n);
          kernels_[layout][precision][tile] = intern_kernel(name, family, capability);
        }
      }
    }
  }

  const Kernel* operator()(GemmLayout layout, GemmPrecision precision, const GemmTile& tile) const {
    const auto index = std::find(tiles_.begin(), tiles_.end(), tile) - tiles_.begin();
    return kernels_[static_cast<size_t>(layout)][static_cast<size_t>(precision)][index];
  }

 private:
  std::array<GemmTile, Tiles> tiles_;
  std::array<std::array<std::array<const Kernel*, Tiles>, precision_count>, layout_count> kernels_;
};

constexpr const char* portable_family = "matmul";

const Kernel* tiled_kernel(const GemmShape& shape, const GemmTile& tile, bool tensorops, bool partial_sums) {
  constexpr auto matrix_units = Capability::tensorops;
  static const std::array portable{
      KernelTable("portable", portable_family, Capability::portable, portable_tiles, false),
      KernelTable("portable", portable_family, Capability::portable, portable_tiles, true)
  };
  static const std::array accelerated{
      KernelTable("tensorops", "matmul_tensorops", matrix_units, tensorops_tiles, false),
      KernelTable("tensorops", "matmul_tensorops", matrix_units, tensorops_tiles, true)
  };
  return tensorops ? accelerated[partial_sums](shape.layout, shape.precision, tile)
                   : portable[partial_sums](shape.layout, shape.precision, tile);
}

constexpr size_t dtype_count = 3;

// Operands' and output's types: those of GemmPrecision without the relaxed one.
size_t dtype_index(GemmPrecision precision) {
  return precision == GemmPrecision::bfloat16 ? 2 : precision == GemmPrecision::float16 ? 1 : 0;
}

const Kernel* portable_kernel(const std::string& prefix, size_t dtype, const std::string& suffix = "") {
  constexpr std::array<const char*, dtype_count> names{"float32", "float16", "bfloat16"};
  return intern_kernel(prefix + names[dtype] + suffix, portable_family, Capability::portable);
}

const Kernel* vector_kernel(const GemmShape& shape, int32_t rows) {
  using Rows = std::array<const Kernel*, vector_rows.size()>;
  static const auto kernels = [] {
    std::array<std::array<Rows, dtype_count>, 2> table;
    for (const auto layout : {GemmLayout::nn, GemmLayout::nt}) {
      for (size_t dtype = 0; dtype < dtype_count; ++dtype) {
        for (size_t i = 0; i < vector_rows.size(); ++i) {
          const auto index = static_cast<size_t>(layout);
          const std::string prefix = std::string("matmul_vector_") + layout_names[index] + "_";
          table[index][dtype][i] = portable_kernel(prefix, dtype, "_" + decimal(vector_rows[i]));
        }
      }
    }
    return table;
  }();
  const auto size = std::find(vector_rows.begin(), vector_rows.end(), rows) - vector_rows.begin();
  return kernels[static_cast<size_t>(shape.layout)][dtype_index(shape.precision)][size];
}

const Kernel* reduce_kernel(GemmPrecision precision) {
  static const std::array kernels{
      portable_kernel("matmul_reduce_", 0), portable_kernel("matmul_reduce_", 1), portable_kernel("matmul_reduce_", 2)
  };
  return kernels[dtype_index(precision)];
}

// A matrix of one row in place of one of one column: out [M, 1] and out [1, M] are the same.
MatmulProblem transpose_of(const MatmulProblem& problem) {
  MatmulProblem transposed = problem;
  std::swap(transposed.M, transposed.N);
  std::swap(transposed.a, transposed.b);
  auto swap_strides = [](MatmulOperand& x) { std::swap(x.row_stride, x.col_stride); };
  swap_strides(transposed.a);
  swap_strides(transposed.b);
  for (auto* addend : {&transposed.c, &transposed.bias, &transposed.residual}) {
    if (*addend) {
      swap_strides(**addend);
    }
  }
  return transposed;
}

// What a launch of partial sums computes.
MatmulProblem without_epilogue(const MatmulProblem& problem) {
  MatmulProblem bare = problem;
  bare.c = bare.bias = bare.residual = std::nullopt;
  bare.epilogue = {};
  return bare;
}

MatmulArgs args_of(const MatmulProblem& problem, const Placement& operands, const Tiling& tiling) {
  MatmulArgs args = operand_args(problem, operands, tiling);
  args.c = addend_args(problem.c);
  args.bias = addend_args(problem.bias);
  args.residual = addend_args(problem.residual);
  return args;
}

// The constants that kernels/common/matmul_epilogue.h declares.
void add_epilogue_constants(Launch& launch, const MatmulProblem& problem) {
  const size_t itemsize = problem.dtype.size();
  auto add = [&](uint16_t index, bool value) { launch.constants.push_back(FunctionConstant::boolean(index, value)); };
  auto vector = [&](const std::optional<MatmulOperand>& x) { return x && starts_runs_of_four(*x, itemsize); };
  add(0, problem.c.has_value());
  add(1, problem.bias.has_value());
  add(2, problem.residual.has_value());
  add(3, !problem.batch_shape.empty());
  launch.constants.push_back(FunctionConstant::int32(4, problem.epilogue.activation));
  add(5, problem.K > 0);
  add(6, problem.N % 4 == 0);
  add(7, vector(problem.c));
  add(8, vector(problem.bias));
  add(9, vector(problem.residual));
}

// Those of kernels/matmul.metal.
void add_operand_constants(Launch& launch, const Placement& operands, size_t itemsize) {
  for (const auto* operand : {&operands.a, &operands.b}) {
    const auto index = static_cast<uint16_t>(operand == &operands.a ? 10 : 11);
    launch.constants.push_back(FunctionConstant::boolean(index, starts_runs_of_four(*operand, itemsize)));
  }
}

void add_arguments(
    Launch& launch,
    const Argument& first,
    const Argument& second,
    const Argument& out,
    const MatmulProblem& problem,
    const MatmulArgs& args
) {
  auto addend = [](const std::optional<MatmulOperand>& x) {
    return x ? Argument::input(x->input) : Argument::unused();
  };
  launch.arguments.push_back(first);
  launch.arguments.push_back(second);
  launch.arguments.push_back(out);
  launch.push_bytes(args);
  launch.arguments.push_back(addend(problem.c));
  launch.arguments.push_back(addend(problem.bias));
  launch.arguments.push_back(addend(problem.residual));
}

void add_product(
    Plan& plan,
    const MatmulProblem& problem,
    const Placement& operands,
    const Kernel* kernel,
    const Argument& out,
    const MatmulArgs& args
) {
  plan.launches.push_back({});
  Launch& launch = plan.launches.back();
  launch.kernel = kernel;
  add_epilogue_constants(launch, problem);
  if (kernel->capability == Capability::portable) {
    add_operand_constants(launch, operands, problem.dtype.size());
  }
  const bool has_k = problem.K > 0;
  const auto a = has_k ? operands.a.argument : Argument::unused();
  const auto b = has_k ? operands.b.argument : Argument::unused();
  add_arguments(launch, a, b, out, problem, args);
}

void add_vector_product(
    Plan& plan, const MatmulProblem& problem, const Placement& operands, const GemmShape& shape, const GemmTile& tile
) {
  const Tiling tiling{1, tile_count(problem.N, tile.n), 0, problem.K};
  const auto* kernel = vector_kernel(shape, tile.m);
  add_product(plan, problem, operands, kernel, Argument::output(0), args_of(problem, operands, tiling));
  Launch& launch = plan.launches.back();
  launch.grid = walk_grid(1, tiling.tiles_n, 0, shape.batch);
  launch.group = {shape.layout == GemmLayout::nn ? 128u : 64u, 1, 1};
}

// One launch over tiles, of all of K or of its partitions.
void add_tiled_product(
    Plan& plan,
    const MatmulProblem& problem,
    const Placement& operands,
    const GemmShape& shape,
    const GemmChoice& choice,
    const Argument& out
) {
  const bool tensorops = !operands.obstacle;
  const bool split = choice.kind == GemmKind::split;
  const Tiling tiling{
      tile_count(problem.M, choice.tile.m),
      tile_count(problem.N, choice.tile.n),
      choose_walk_width(shape, choice.tile),
      choice.partition_k
  };
  const auto* kernel = tiled_kernel(shape, choice.tile, tensorops, split);
  add_product(plan, problem, operands, kernel, out, args_of(problem, operands, tiling));
  Launch& launch = plan.launches.back();
  const int64_t members = shape.batch * (split ? tile_count(problem.K, choice.partition_k) : 1);
  launch.grid = walk_grid(tiling.tiles_m, tiling.tiles_n, tiling.walk_width, members);
  launch.group = {128, 1, 1};
}

// Adds the partial sums in order, and finishes them.
void add_reduction(
    Plan& plan,
    const MatmulProblem& problem,
    const Placement& operands,
    const GemmShape& shape,
    int32_t partition_k,
    uint8_t partial_sums
) {
  plan.launches.push_back({});
  Launch& launch = plan.launches.back();
  launch.kernel = reduce_kernel(shape.precision);
  add_epilogue_constants(launch, problem);
  const auto args = args_of(problem, operands, {.partition_k = partition_k});
  add_arguments(launch, Argument::scratch_in(partial_sums), Argument::unused(), Argument::output(0), problem, args);
  constexpr Size3 group{32, 4, 1};
  launch.group = group;
  launch.grid = walk_grid(tile_count(problem.M, group.y), tile_count(problem.N, 4 * group.x), 0, shape.batch);
}

void add_split_product(
    Plan& plan,
    const MatmulProblem& problem,
    const Placement& operands,
    const GemmShape& shape,
    const GemmChoice& choice
) {
  const auto partitions = static_cast<size_t>(tile_count(problem.K, choice.partition_k));
  const auto members = static_cast<size_t>(shape.batch) * partitions;
  const auto sums = plan.add_scratch(members * problem.M * problem.N * sizeof(float));
  add_tiled_product(plan, without_epilogue(problem), operands, shape, choice, sums);
  add_reduction(plan, problem, operands, shape, choice.partition_k, sums.index);
}

GemmShape shape_of(const MatmulProblem& problem, const Placement& operands) {
  return {
      problem.M,
      problem.N,
      problem.K,
      problem.batch(),
      layout_of(operands),
      precision_of(problem),
      problem.batch_invariant
  };
}

// A single column is a single row of the transpose. (Batch invariance needs the layout of a to have no say.)
MatmulProblem normalized(const MatmulProblem& problem) {
  return problem.N == 1 && problem.M > 1 && !problem.batch_invariant ? transpose_of(problem) : problem;
}

} // namespace

const char* tensorops_obstacle(const MatmulProblem& given, const DeviceProfile& device) {
  const MatmulProblem problem = normalized(given);
  Plan plan;
  const Placement operands = place_operands(plan, problem, device);
  if (operands.obstacle) {
    return operands.obstacle;
  }
  const auto choice = choose_gemm(shape_of(problem, operands), device, true);
  return choice.kind == GemmKind::vector ? choice.reason : nullptr;
}

Plan plan_matmul(const MatmulProblem& given, const DeviceProfile& device) {
  Plan plan;
  if (given.empty()) {
    return plan;
  }
  const MatmulProblem problem = normalized(given);
  const Placement operands = place_operands(plan, problem, device);
  const GemmShape shape = shape_of(problem, operands);
  const GemmChoice choice = choose_gemm(shape, device, !operands.obstacle);
  switch (choice.kind) {
    case GemmKind::vector:
      add_vector_product(plan, problem, operands, shape, choice.tile);
      break;
    case GemmKind::tiled:
      add_tiled_product(plan, problem, operands, shape, choice, Argument::output(0));
      break;
    case GemmKind::split:
      add_split_product(plan, problem, operands, shape, choice);
      break;
  }
  return plan;
}

} // namespace tessl
