#include "ops/int8_matmul_plan.h"

#include <algorithm>
#include <array>
#include <string>

#include "kernels/args/int8_matmul.h"
#include "launch/decimal.h"
#include "launch/gemm_tiles.h"
#include "ops/gemm_operands.h"

namespace tessl {
namespace {

constexpr std::array<const char*, 4> layout_names{"nn", "nt", "tn", "tt"};
constexpr std::array<const char*, 4> out_names{"int32", "float32", "float16", "bfloat16"};

size_t out_index(mlx::core::Dtype out) {
  return out == mlx::core::int32 ? 0 : out == mlx::core::float32 ? 1 : out == mlx::core::float16 ? 2 : 3;
}

// The kernels of one family by layout, output and tile.
template <size_t Tiles>
class KernelTable {
 public:
  KernelTable(
      const std::string& variant, const char* family, Capability capability, const std::array<GemmTile, Tiles>& tiles
  )
      : tiles_(tiles) {
    for (size_t layout = 0; layout < layout_names.size(); ++layout) {
      for (size_t out = 0; out < out_names.size(); ++out) {
        for (size_t i = 0; i < Tiles; ++i) {
          const std::string tile = decimal(tiles[i].m) + "x" + decimal(tiles[i].n);
          const std::string name =
              "int8_matmul_" + variant + "_" + layout_names[layout] + "_" + out_names[out] + "_" + tile;
          kernels_[layout][out][i] = intern_kernel(name, family, capability);
        }
      }
    }
  }

  const Kernel* operator()(GemmLayout layout, mlx::core::Dtype out, const GemmTile& tile) const {
    const auto index = std::find(tiles_.begin(), tiles_.end(), tile) - tiles_.begin();
    return kernels_[static_cast<size_t>(layout)][out_index(out)][index];
  }

 private:
  std::array<GemmTile, Tiles> tiles_;
  std::array<std::array<std::array<const Kernel*, Tiles>, out_names.size()>, layout_names.size()> kernels_;
};

const Kernel* kernel_of(const GemmShape& shape, mlx::core::Dtype out, const GemmTile& tile, bool tensorops) {
  static const KernelTable portable("portable", "int8_matmul", Capability::portable, portable_tiles);
  static const KernelTable accelerated("tensorops", "int8_matmul_tensorops", Capability::tensorops, tensorops_tiles);
  return tensorops ? accelerated(shape.layout, out, tile) : portable(shape.layout, out, tile);
}

// The constants of kernels/common/int8_epilogue.h and int8_matmul.metal.
void add_constants(Launch& launch, const Int8MatmulProblem& problem, const Placement& operands) {
  const auto& product = problem.product;
  auto add = [&](uint16_t index, bool value) { launch.constants.push_back(FunctionConstant::boolean(index, value)); };
  add(1, product.bias.has_value());
  add(3, !product.batch_shape.empty());
  launch.constants.push_back(FunctionConstant::int32(4, product.epilogue.activation));
  add(5, product.K > 0);
  add(6, product.N % 4 == 0);
  if (launch.kernel->capability == Capability::portable) {
    add(10, starts_runs_of_four(operands.a, product.dtype.size()));
    add(11, starts_runs_of_four(operands.b, product.dtype.size()));
  }
  add(12, problem.scale_a.has_value());
  add(13, problem.scale_b.has_value());
}

void add_arguments(
    Launch& launch, const Int8MatmulProblem& problem, const Placement& operands, const Int8MatmulArgs& args
) {
  const bool has_k = problem.product.K > 0;
  auto addend = [](const std::optional<MatmulOperand>& x) {
    return x ? Argument::input(x->input) : Argument::unused();
  };
  launch.arguments.push_back(has_k ? operands.a.argument : Argument::unused());
  launch.arguments.push_back(has_k ? operands.b.argument : Argument::unused());
  launch.arguments.push_back(Argument::output(0));
  launch.push_bytes(args);
  launch.arguments.push_back(addend(problem.scale_a));
  launch.arguments.push_back(addend(problem.product.bias));
  launch.arguments.push_back(addend(problem.scale_b));
}

} // namespace

Int8MatmulProblem make_int8_matmul_problem(
    mlx::core::Dtype out,
    const Operand& a,
    const Operand& b,
    const std::optional<Operand>& scale_a,
    const std::optional<Operand>& bias,
    const std::optional<Operand>& scale_b,
    MatmulActivation activation
) {
  // Scales stride through the batch as the addends of a product do.
  Int8MatmulProblem problem;
  problem.out = out;
  problem.product =
      make_matmul_problem(mlx::core::int8, a, b, scale_a, bias, scale_b, {1.0f, 1.0f, activation}, false, false);
  std::swap(problem.product.c, problem.scale_a);
  std::swap(problem.product.residual, problem.scale_b);
  return problem;
}

Plan plan_int8_matmul(const Int8MatmulProblem& problem, const DeviceProfile& device) {
  Plan plan;
  const auto& product = problem.product;
  if (product.empty()) {
    return plan;
  }
  const Placement operands = place_operands(plan, product, device);
  const bool tensorops = !operands.obstacle;
  const GemmShape shape{
      product.M, product.N, product.K, product.batch(), layout_of(operands), GemmPrecision::int8, false
  };
  const auto tile = (tensorops ? choose_tensorops_tile(shape, device) : choose_portable_tile(shape, device)).tile;
  const Tiling tiling{
      tile_count(product.M, tile.m), tile_count(product.N, tile.n), choose_walk_width(shape, tile), product.K
  };
  Int8MatmulArgs args{operand_args(product, operands, tiling), {}, {}};
  args.product.bias = addend_args(product.bias);
  args.scale_a = addend_args(problem.scale_a);
  args.scale_b = addend_args(problem.scale_b);

  plan.launches.push_back({});
  Launch& launch = plan.launches.back();
  launch.kernel = kernel_of(shape, problem.out, tile, tensorops);
  add_constants(launch, problem, operands);
  add_arguments(launch, problem, operands, args);
  launch.grid = walk_grid(tiling.tiles_m, tiling.tiles_n, tiling.walk_width, shape.batch);
  launch.group = {128, 1, 1};
  return plan;
}

} // namespace tessl
