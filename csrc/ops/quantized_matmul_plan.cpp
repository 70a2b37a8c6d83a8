#include "ops/quantized_matmul_plan.h"

#include <algorithm>
#include <array>
#include <string>

#include "launch/decimal.h"
#include "launch/gemm_tiles.h"
#include "ops/operand_copy.h"

namespace tessl {
namespace {

// Rows of x that a vector kernel takes: of the transposed weights by what a simdgroup's registers hold, of the plain
// ones, where a thread has eight columns, by what its own do.
constexpr std::array vector_rows_nt{1, 2, 4, 8, 16, 32};
constexpr std::array vector_columns_nt{4, 4, 4, 2, 2, 1}; // of a simdgroup, for so many rows
constexpr std::array vector_rows_nn{1, 4};

// Below how many rows of x a pass over the weights by vectors beats tiles, by the width of the matrix: up to 2048 in
// both directions, up to 4096, wider. MLX's limits (its get_qmv_batch_limit), measured there by generation.
struct VectorLimits {
  bool (*applies)(const DeviceProfile& device);
  std::array<int32_t, 3> rows;
  const char* source;
};

constexpr std::array vector_limits{
    VectorLimits{[](const DeviceProfile& d) { return d.generation >= 17; }, {33, 25, 13}, "MLX, M5 on"},
    VectorLimits{
        [](const DeviceProfile& d) { return d.gpu_class == GpuClass::ultra; }, {32, 18, 12}, "MLX, Ultra before M5"
    },
    VectorLimits{[](const DeviceProfile& d) { return d.generation >= 15; }, {18, 12, 10}, "MLX, M3 and M4"},
    VectorLimits{[](const DeviceProfile&) { return true; }, {14, 10, 6}, "MLX, M1 and M2"},
};

int32_t vector_limit(const MatmulProblem& product, const DeviceProfile& device) {
  const auto limits = std::find_if(vector_limits.begin(), vector_limits.end(), [&](const auto& entry) {
    return entry.applies(device);
  });
  const int32_t width = std::max(product.N, product.K);
  return limits->rows[width <= 2048 ? 0 : width <= 4096 ? 1 : 2];
}

// An operand as the kernels read it: rows of contiguous elements.
struct PlacedOperand {
  Argument argument;
  int64_t offset = 0; // bytes from the start of its buffer
  int64_t row_stride = 0;
  FixedVector<int64_t, MATMUL_MAX_BATCH_DIMS> batch_strides;
};

PlacedOperand place(
    Plan& plan,
    const QuantizedMatmulProblem& problem,
    const MatmulOperand& x,
    int32_t rows,
    int32_t columns,
    size_t itemsize
) {
  if (x.col_stride == 1 || columns <= 1 || problem.product.K == 0) {
    return {Argument::input(x.input), x.offset, rows == 1 ? columns : x.row_stride, x.batch_strides};
  }
  const auto copy = add_operand_copy(plan, problem.product, x, rows, columns, false, itemsize);
  return {copy.argument, 0, columns, copy.batch_strides};
}

struct PlacedOperands {
  PlacedOperand x, w, scales;
  std::optional<PlacedOperand> biases;
};

int32_t packed_columns(const QuantizedMatmulProblem& problem) {
  return problem.transposed ? problem.product.K : problem.product.N;
}

PlacedOperands place_operands(Plan& plan, const QuantizedMatmulProblem& problem) {
  const auto& product = problem.product;
  const auto& quantization = problem.quantization;
  const size_t itemsize = product.dtype.size();
  const int32_t rows = packed_rows(problem);
  const int32_t groups = packed_columns(problem) / quantization.group_size;
  const auto words = static_cast<int32_t>(int64_t{packed_columns(problem)} * quantization.bits / 32);
  PlacedOperands placed{
      place(plan, problem, product.a, product.M, product.K, itemsize),
      place(plan, problem, product.b, rows, words, sizeof(uint32_t)),
      place(plan, problem, problem.scales, rows, groups, quantization.is_affine() ? itemsize : 1),
      {}
  };
  if (problem.biases) {
    placed.biases = place(plan, problem, *problem.biases, rows, groups, itemsize);
  }
  return placed;
}

// Whether each multiple of four elements along a row starts on a boundary of four.
template <typename Strided>
bool starts_runs_of_four(const Strided& x, size_t itemsize) {
  return x.offset % static_cast<int64_t>(4 * itemsize) == 0 && x.row_stride % 4 == 0 &&
         std::all_of(x.batch_strides.begin(), x.batch_strides.end(), [](int64_t stride) { return stride % 4 == 0; });
}

// A kernel is taken by the first rule that applies.
struct KernelRule {
  bool (*applies)(const QuantizedMatmulProblem& problem, const PlacedOperands& operands, const DeviceProfile& device);
  QuantizedKernelChoice choice;
};

// What matmul2d reads in place: see tensorops_obstacle in matmul_plan.cpp.
constexpr int64_t tensorops_alignment = 16;
constexpr int64_t tensorops_lines = 128;
constexpr int64_t tensorops_reach = int64_t{1} << 31;

bool is_view_of_tensorops(const PlacedOperand& x, int32_t lines, size_t itemsize) {
  const int64_t run = tensorops_alignment / static_cast<int64_t>(itemsize);
  return x.offset % tensorops_alignment == 0 && x.row_stride > 0 &&
         std::min<int64_t>(lines, tensorops_lines) * x.row_stride * static_cast<int64_t>(itemsize) < tensorops_reach &&
         std::all_of(x.batch_strides.begin(), x.batch_strides.end(), [&](int64_t s) { return s % run == 0; });
}

bool x_is_view(const QuantizedMatmulProblem& problem, const PlacedOperands& operands) {
  const auto& product = problem.product;
  return product.K == 0 || is_view_of_tensorops(operands.x, product.M, product.dtype.size());
}

// matmul2d takes e8m0 scales of blocks of 32 along K for a transposed right operand, e4m3 or e2m1, beside a half left
// one; scales of one row after another, without gaps.
bool is_native(const QuantizedMatmulProblem& problem, const PlacedOperands& operands) {
  const auto& product = problem.product;
  const auto mode = problem.quantization.mode;
  const bool has_planes = mode == QUANTIZATION_MXFP4 || mode == QUANTIZATION_MXFP8;
  const int64_t row_words = int64_t{product.K} * problem.quantization.bits / 32;
  return has_planes && problem.transposed && product.dtype == mlx::core::float16 && product.K > 0 &&
         operands.w.row_stride == row_words && operands.scales.row_stride == product.K / 32 &&
         is_view_of_tensorops(operands.w, product.N, sizeof(uint32_t)) && x_is_view(problem, operands);
}

// Cooperative tensors as inputs were announced with macOS 26.3; MLX uses them from 26.2 on.
constexpr MacosVersion direct_macos{26, 3};

// Rows of the taller direct tile. With more, a staged block of 128 rows decodes the weights less often.
constexpr int32_t direct_rows = 64;

using Problem = QuantizedMatmulProblem;
constexpr std::array kernel_rules{
    KernelRule{
        [](const Problem& problem, const PlacedOperands&, const DeviceProfile& device) {
          return problem.transposed && problem.product.M < vector_limit(problem.product, device);
        },
        {QuantizedKernelKind::vector, "few rows of x: the time is that of reading the weights once"}
    },
    KernelRule{
        [](const Problem& problem, const PlacedOperands&, const DeviceProfile&) {
          return !problem.transposed && problem.product.M <= vector_rows_nn.back();
        },
        {QuantizedKernelKind::vector, "few rows of x, and a thread holds the sums of eight columns for each"}
    },
    KernelRule{
        [](const Problem&, const PlacedOperands&, const DeviceProfile& device) {
          return !device.has(Capability::tensorops);
        },
        {QuantizedKernelKind::portable, "the device has no matrix unit that its macOS lets us use"}
    },
    KernelRule{
        [](const Problem& problem, const PlacedOperands&, const DeviceProfile&) {
          return problem.product.dtype == mlx::core::float32 && !problem.product.relaxed;
        },
        {QuantizedKernelKind::portable, "exact float32 does not run on the matrix units"}
    },
    KernelRule{
        [](const Problem& problem, const PlacedOperands& operands, const DeviceProfile& device) {
          return device.has(Capability::tensorops27) && is_native(problem, operands);
        },
        {QuantizedKernelKind::native, "matmul2d decodes this format itself"}
    },
    KernelRule{
        [](const Problem& problem, const PlacedOperands&, const DeviceProfile& device) {
          return problem.product.M <= direct_rows && device.macos >= direct_macos;
        },
        {QuantizedKernelKind::direct, "one row of tiles: every weight is decoded once, in registers"}
    },
    KernelRule{
        [](const Problem& problem, const PlacedOperands& operands, const DeviceProfile&) {
          return x_is_view(problem, operands);
        },
        {QuantizedKernelKind::staged, "many rows of x share the weights decoded in threadgroup memory"}
    },
    KernelRule{
        [](const Problem&, const PlacedOperands&, const DeviceProfile& device) { return device.macos >= direct_macos; },
        {QuantizedKernelKind::direct, "x does not lie as matmul2d reads it in place"}
    },
    KernelRule{
        [](const Problem&, const PlacedOperands&, const DeviceProfile&) { return true; },
        {QuantizedKernelKind::portable, "x does not lie as matmul2d reads it in place, nor may it take registers"}
    },
};

QuantizedKernelChoice choose_kernel(
    const QuantizedMatmulProblem& problem, const PlacedOperands& operands, const DeviceProfile& device
) {
  return std::find_if(
             kernel_rules.begin(), kernel_rules.end(), [&](const auto& rule) {
               return rule.applies(problem, operands, device);
             }
  )->choice;
}

constexpr std::array<const char*, 3> dtype_names{"float32", "float16", "bfloat16"};

size_t dtype_index(mlx::core::Dtype dtype) {
  return dtype == mlx::core::float32 ? 0 : dtype == mlx::core::float16 ? 1 : 2;
}

// The kernels of one variant by dtype and by `Count` sizes.
template <size_t Count>
class KernelTable {
 public:
  KernelTable(
      const std::string& variant, const char* family, Capability capability, const std::array<std::string, Count>& sizes
  ) {
    for (size_t dtype = 0; dtype < dtype_names.size(); ++dtype) {
      for (size_t size = 0; size < Count; ++size) {
        const std::string name = "quantized_matmul_" + variant + "_" + dtype_names[dtype] + "_" + sizes[size];
        kernels_[dtype][size] = intern_kernel(name, family, capability);
      }
    }
  }

  const Kernel* operator()(mlx::core::Dtype dtype, size_t size) const {
    return kernels_[dtype_index(dtype)][size];
  }

 private:
  std::array<std::array<const Kernel*, Count>, dtype_names.size()> kernels_;
};

template <size_t Count>
std::array<std::string, Count> texts(const std::array<int, Count>& numbers) {
  std::array<std::string, Count> result;
  std::transform(numbers.begin(), numbers.end(), result.begin(), [](int number) { return decimal(number); });
  return result;
}

template <size_t Count>
std::array<std::string, Count> texts(const std::array<GemmTile, Count>& tiles) {
  std::array<std::string, Count> result;
  std::transform(tiles.begin(), tiles.end(), result.begin(), [](const GemmTile& tile) {
    return decimal(tile.m) + "x" + decimal(tile.n);
  });
  return result;
}

constexpr const char* portable_family = "quantized_matmul";

// The place of the first size that `rows` fit into.
template <size_t Count>
size_t fitting(const std::array<int, Count>& sizes, int32_t rows) {
  return static_cast<size_t>(std::lower_bound(sizes.begin(), sizes.end(), rows) - sizes.begin());
}

// What depends on the kernel.
struct Dispatch {
  const Kernel* kernel = nullptr;
  int32_t tiles_m = 1;
  int32_t tiles_n = 1;
  int32_t walk_width = 0;
  Size3 grid, group;
};

Dispatch vector_dispatch(const QuantizedMatmulProblem& problem) {
  constexpr auto portable = Capability::portable;
  static const KernelTable nt("vector_nt", portable_family, portable, texts(vector_rows_nt));
  static const KernelTable nn("vector_nn", portable_family, portable, texts(vector_rows_nn));
  const auto& product = problem.product;
  Dispatch dispatch;
  if (problem.transposed) {
    const size_t size = fitting(vector_rows_nt, product.M);
    dispatch.kernel = nt(product.dtype, size);
    dispatch.tiles_n = tile_count(product.N, 2 * vector_columns_nt[size]);
    dispatch.group = {64, 1, 1};
  } else {
    dispatch.kernel = nn(product.dtype, fitting(vector_rows_nn, product.M));
    dispatch.tiles_n = tile_count(product.N, 64);
    dispatch.group = {128, 1, 1};
  }
  dispatch.grid = walk_grid(1, dispatch.tiles_n, 0, product.batch());
  return dispatch;
}

GemmShape shape_of(const QuantizedMatmulProblem& problem) {
  const auto& product = problem.product;
  constexpr std::array precisions{GemmPrecision::float32, GemmPrecision::float16, GemmPrecision::bfloat16};
  auto precision = precisions[dtype_index(product.dtype)];
  if (precision == GemmPrecision::float32 && product.relaxed) {
    precision = GemmPrecision::float32_relaxed;
  }
  const auto layout = problem.transposed ? GemmLayout::nt : GemmLayout::nn;
  return {product.M, product.N, product.K, product.batch(), layout, precision, false};
}

// Kernels by layout, dtype and tile.
template <size_t Count>
struct TiledKernels {
  TiledKernels(const char* variant, const char* family, Capability capability, const std::array<GemmTile, Count>& tiles)
      : tiles(tiles),
        nt(std::string(variant) + "_nt", family, capability, texts(tiles)),
        nn(std::string(variant) + "_nn", family, capability, texts(tiles)) {
  }

  const Kernel* operator()(const QuantizedMatmulProblem& problem, const GemmTile& tile) const {
    const auto index = static_cast<size_t>(std::find(tiles.begin(), tiles.end(), tile) - tiles.begin());
    return (problem.transposed ? nt : nn)(problem.product.dtype, index);
  }

  std::array<GemmTile, Count> tiles;
  KernelTable<Count> nt, nn;
};

constexpr std::array direct_tiles{GemmTile{32, 128}, GemmTile{64, 128}};
constexpr std::array decoding_tiles{GemmTile{128, 64}, GemmTile{64, 64}};

// Weights are decoded once for each row of tiles: of the two general tiles the taller one.
GemmTile decoding_tile(const GemmShape& shape, const DeviceProfile& device) {
  const GemmTile tile = choose_tensorops_tile(shape, device).tile;
  return decoding_tiles[tile == decoding_tiles[1] ? 1 : 0];
}

const Kernel* native_kernel(QuantizationMode mode, const GemmTile& tile) {
  auto named = [](const char* format, const GemmTile& size) {
    const std::string text = decimal(size.m) + "x" + decimal(size.n);
    const std::string name = std::string("quantized_matmul_") + format + "_float16_" + text;
    return intern_kernel(name, "quantized_matmul_tensorops27", Capability::tensorops27);
  };
  static const std::array kernels{
      std::array{named("mxfp4", decoding_tiles[0]), named("mxfp4", decoding_tiles[1])},
      std::array{named("mxfp8", decoding_tiles[0]), named("mxfp8", decoding_tiles[1])},
  };
  return kernels[mode == QUANTIZATION_MXFP8][tile == decoding_tiles[1]];
}

struct TiledKernel {
  const Kernel* kernel;
  GemmTile tile;
};

TiledKernel tiled_kernel(
    const QuantizedMatmulProblem& problem, QuantizedKernelKind kind, const GemmShape& shape, const DeviceProfile& device
) {
  constexpr auto tensorops = Capability::tensorops;
  constexpr const char* family = "quantized_matmul_tensorops";
  static const TiledKernels portable("portable", portable_family, Capability::portable, portable_tiles);
  static const TiledKernels direct("direct", family, tensorops, direct_tiles);
  static const TiledKernels staged("staged", family, tensorops, decoding_tiles);
  if (kind == QuantizedKernelKind::portable) {
    const GemmTile tile = choose_portable_tile(shape, device).tile;
    return {portable(problem, tile), tile};
  }
  if (kind == QuantizedKernelKind::direct) {
    const GemmTile tile = direct_tiles[problem.product.M <= direct_tiles[0].m ? 0 : 1];
    return {direct(problem, tile), tile};
  }
  const GemmTile tile = decoding_tile(shape, device);
  if (kind == QuantizedKernelKind::staged) {
    return {staged(problem, tile), tile};
  }
  return {native_kernel(problem.quantization.mode, tile), tile};
}

Dispatch tiled_dispatch(const QuantizedMatmulProblem& problem, QuantizedKernelKind kind, const DeviceProfile& device) {
  const auto& product = problem.product;
  const GemmShape shape = shape_of(problem);
  const auto [kernel, tile] = tiled_kernel(problem, kind, shape, device);
  Dispatch dispatch;
  dispatch.kernel = kernel;
  dispatch.tiles_m = tile_count(product.M, tile.m);
  dispatch.tiles_n = tile_count(product.N, tile.n);
  dispatch.walk_width = choose_walk_width(shape, tile);
  dispatch.grid = walk_grid(dispatch.tiles_m, dispatch.tiles_n, dispatch.walk_width, product.batch());
  dispatch.group = {128, 1, 1};
  return dispatch;
}

using BatchStrides = FixedVector<int64_t, MATMUL_MAX_BATCH_DIMS>;

void copy_strides(const BatchStrides& from, int64_t* to) {
  std::copy(from.begin(), from.end(), to);
}

QuantizedMatmulArgs args_of(
    const QuantizedMatmulProblem& problem, const PlacedOperands& operands, const Dispatch& dispatch
) {
  const auto& product = problem.product;
  QuantizedMatmulArgs args{};
  args.product.M = product.M;
  args.product.N = product.N;
  args.product.K = product.K;
  args.product.batch_ndim = static_cast<int32_t>(product.batch_shape.size());
  args.product.tiles_m = dispatch.tiles_m;
  args.product.tiles_n = dispatch.tiles_n;
  args.product.walk_width = dispatch.walk_width;
  args.product.alpha = 1.0f;
  args.product.lda = operands.x.row_stride;
  args.product.ldb = operands.w.row_stride;
  std::copy(product.batch_shape.begin(), product.batch_shape.end(), args.product.batch_shape);
  copy_strides(operands.x.batch_strides, args.product.a_batch_strides);
  copy_strides(operands.w.batch_strides, args.product.b_batch_strides);
  if (product.bias) {
    args.product.bias.row_stride = product.bias->row_stride;
    args.product.bias.col_stride = product.bias->col_stride;
    copy_strides(product.bias->batch_strides, args.product.bias.batch_strides);
  }
  args.ld_scales = operands.scales.row_stride;
  copy_strides(operands.scales.batch_strides, args.scales_batch_strides);
  if (operands.biases) {
    args.ld_biases = operands.biases->row_stride;
    copy_strides(operands.biases->batch_strides, args.biases_batch_strides);
  }
  return args;
}

// The constants of kernels/common/matmul_epilogue.h, dequantize.h and quantized_matmul.metal.
void add_constants(
    Launch& launch, const QuantizedMatmulProblem& problem, const PlacedOperands& operands, QuantizedKernelKind kind
) {
  const auto& product = problem.product;
  const auto& quantization = problem.quantization;
  const size_t itemsize = product.dtype.size();
  auto add = [&](uint16_t index, bool value) { launch.constants.push_back(FunctionConstant::boolean(index, value)); };
  auto add_int = [&](uint16_t index, int32_t value) {
    launch.constants.push_back(FunctionConstant::int32(index, value));
  };
  const bool vector_bias =
      product.bias && product.bias->col_stride == 1 && starts_runs_of_four(*product.bias, itemsize);
  add(0, false);
  add(1, product.bias.has_value());
  add(2, false);
  add(3, !product.batch_shape.empty());
  add_int(4, product.epilogue.activation);
  add(5, product.K > 0);
  add(6, product.N % 4 == 0);
  add(7, false);
  add(8, vector_bias);
  add(9, false);
  if (kind == QuantizedKernelKind::native) {
    return;
  }
  add(10, starts_runs_of_four(operands.x, itemsize));
  add_int(11, quantization.mode);
  add_int(12, quantization.bits);
  add_int(13, quantization.group_size);
  add(14, operands.biases && product.K > 0);
}

void add_arguments(
    Launch& launch,
    const QuantizedMatmulProblem& problem,
    const PlacedOperands& operands,
    const QuantizedMatmulArgs& args
) {
  const bool has_k = problem.product.K > 0;
  auto operand = [&](const PlacedOperand& x) { return has_k ? x.argument : Argument::unused(); };
  const auto& bias = problem.product.bias;
  launch.arguments.push_back(operand(operands.x));
  launch.arguments.push_back(operand(operands.w));
  launch.arguments.push_back(Argument::output(0));
  launch.push_bytes(args);
  launch.arguments.push_back(operand(operands.scales));
  launch.arguments.push_back(operands.biases ? operand(*operands.biases) : Argument::unused());
  launch.arguments.push_back(bias ? Argument::input(bias->input) : Argument::unused());
}

// The batch of packed weights, scales or biases as that of a matrix [K, N], for the merging of batch dimensions.
Operand as_matrix(const Operand& packed, int32_t rows, int32_t columns) {
  Operand matrix = packed;
  matrix.shape[matrix.shape.size() - 2] = rows;
  matrix.shape[matrix.shape.size() - 1] = columns;
  return matrix;
}

} // namespace

QuantizedMatmulProblem make_quantized_matmul_problem(
    mlx::core::Dtype dtype,
    const Operand& x,
    const Operand& w,
    const Operand& scales,
    const std::optional<Operand>& biases,
    const std::optional<Operand>& bias,
    const Quantization& quantization,
    bool transposed,
    MatmulActivation activation,
    bool relaxed
) {
  const int32_t rows = w.shape[w.shape.size() - 2];
  const int32_t columns = scales.shape.back() * quantization.group_size;
  QuantizedMatmulProblem problem;
  problem.quantization = quantization;
  problem.transposed = transposed;

  uint8_t input = 2;
  MatmulOperand placed_biases;
  MatmulOperand words;
  FixedVector<MatmulCompanion, max_matmul_companions> companions;
  companions.push_back({1, w, &words});
  companions.push_back({input++, scales, &problem.scales});
  if (biases) {
    companions.push_back({input++, *biases, &placed_biases});
  }
  problem.product = make_matmul_problem(
      dtype,
      x,
      transposed ? as_matrix(w, columns, rows) : as_matrix(w, rows, columns),
      {},
      bias,
      {},
      {1.0f, 0.0f, activation},
      relaxed,
      false,
      {companions.begin(), companions.size()}
  );
  problem.product.b = words;
  if (biases) {
    problem.biases = placed_biases;
  }
  if (problem.product.bias) {
    problem.product.bias->input = input;
  }
  return problem;
}

int32_t packed_rows(const QuantizedMatmulProblem& problem) {
  return problem.transposed ? problem.product.N : problem.product.K;
}

QuantizedKernelChoice choose_quantized_kernel(const QuantizedMatmulProblem& problem, const DeviceProfile& device) {
  Plan plan;
  return choose_kernel(problem, place_operands(plan, problem), device);
}

Plan plan_quantized_matmul(const QuantizedMatmulProblem& problem, const DeviceProfile& device) {
  Plan plan;
  if (problem.product.empty()) {
    return plan;
  }
  const PlacedOperands operands = place_operands(plan, problem);
  const auto kind = choose_kernel(problem, operands, device).kind;
  const Dispatch dispatch =
      kind == QuantizedKernelKind::vector ? vector_dispatch(problem) : tiled_dispatch(problem, kind, device);

  plan.launches.push_back({});
  Launch& launch = plan.launches.back();
  launch.kernel = dispatch.kernel;
  add_constants(launch, problem, operands, kind);
  add_arguments(launch, problem, operands, args_of(problem, operands, dispatch));
  launch.grid = dispatch.grid;
  launch.group = dispatch.group;
  return plan;
}

} // namespace tessl
