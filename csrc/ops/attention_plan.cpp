#include "ops/attention_plan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <string>

#include "kernels/args/attention.h"
#include "launch/decimal.h"
#include "launch/typed_kernels.h"

namespace tessl {
namespace {

using Problem = AttentionProblem;

// Head dimensions that have kernels of their own; others are padded to the next inside of the kernel. Beyond the last,
// the columns of the output are divided among threadgroups.
constexpr std::array<int32_t, 8> heads_of_tiles{64, 72, 80, 96, 128, 192, 256, 512};

// The matrix units take columns 32 at a time, and kernels skip products past the last: these widths bound registers.
constexpr std::array<int32_t, 4> heads_of_tensorops{64, 128, 256, 512};

template <size_t Count>
size_t fitting(const std::array<int32_t, Count>& heads, int32_t columns) {
  const auto fit = std::lower_bound(heads.begin(), heads.end(), columns);
  return fit == heads.end() ? Count - 1 : static_cast<size_t>(fit - heads.begin());
}

constexpr std::array<const char*, 3> dtype_names{"float32", "float16", "bfloat16"};

size_t dtype_index(mlx::core::Dtype dtype) {
  return dtype == mlx::core::float32 ? 0 : dtype == mlx::core::float16 ? 1 : 2;
}

// The kernels of one variant by dtype and head dimension; some are named by their rows as well.
template <size_t Count>
class KernelTable {
 public:
  KernelTable(
      const std::string& variant,
      const char* family,
      Capability capability,
      const std::array<int32_t, Count>& heads,
      const std::array<int32_t, Count>& rows = {}
  ) {
    for (size_t dtype = 0; dtype < dtype_names.size(); ++dtype) {
      for (size_t i = 0; i < Count; ++i) {
        const std::string name = "attention_" + variant + "_" + dtype_names[dtype] + "_" + decimal(heads[i]) +
                                 (rows[i] == 0 ? "" : "_" + decimal(rows[i]));
        kernels_[dtype][i] = intern_kernel(name, family, capability);
      }
    }
  }

  const Kernel* operator()(mlx::core::Dtype dtype, size_t head) const {
    return kernels_[dtype_index(dtype)][head];
  }

 private:
  std::array<std::array<const Kernel*, Count>, dtype_names.size()> kernels_;
};

int32_t ceil_div(int32_t x, int32_t y) {
  return x / y + (x % y != 0);
}

uint32_t unsigned_of(int64_t x) {
  return static_cast<uint32_t>(x);
}

AttentionStrides strides_of(const std::optional<AttentionOperand>& x) {
  return x ? AttentionStrides{x->strides[0], x->strides[1], x->strides[2], x->strides[3]} : AttentionStrides{};
}

AttentionArgs args_of(const Problem& problem) {
  auto reach = [](int32_t window) { return window < 0 ? ATTENTION_UNLIMITED : std::min(window, ATTENTION_UNLIMITED); };
  AttentionArgs args{};
  args.B = problem.B;
  args.heads = problem.heads;
  args.kv_heads = problem.kv_heads;
  args.Tq = problem.Tq;
  args.Tk = problem.Tk;
  args.P = problem.P;
  args.D = problem.D;
  args.Dv = problem.Dv;
  args.reach_left = reach(problem.window_left);
  args.reach_right = problem.causal ? 0 : reach(problem.window_right);
  args.column_parts = 1;
  args.splits = 1;
  args.scale = problem.scale;
  args.softcap = problem.softcap * std::numbers::log2e_v<float>;
  args.score_scale =
      problem.softcap == 0.0f ? problem.scale * std::numbers::log2e_v<float> : problem.scale / problem.softcap;
  args.starts_stride = strides_of(problem.starts).batch;
  args.lengths_stride = strides_of(problem.lengths).batch;
  args.sinks_stride = strides_of(problem.sinks).batch;
  args.q = strides_of(problem.q);
  args.k = strides_of(problem.k);
  args.v = strides_of(problem.v);
  args.prefix_k = strides_of(problem.prefix_k);
  args.prefix_v = strides_of(problem.prefix_v);
  args.mask = strides_of(problem.mask);
  return args;
}

bool in_runs_of_four(const AttentionOperand& x, size_t itemsize) {
  return x.strides[3] == 1 && x.offset % static_cast<int64_t>(4 * itemsize) == 0 &&
         std::all_of(x.strides.begin(), x.strides.end() - 1, [](int64_t stride) { return stride % 4 == 0; });
}

bool all_in_runs_of_four(const Problem& problem) {
  auto in_runs = [&](const AttentionOperand& x) { return in_runs_of_four(x, problem.dtype.size()); };
  const bool prefix = problem.P == 0 || (in_runs(*problem.prefix_k) && in_runs(*problem.prefix_v));
  return in_runs(problem.q) && (problem.Tk == 0 || (in_runs(problem.k) && in_runs(problem.v))) && prefix;
}

bool has_pairs(const Problem& problem) {
  const bool outputs = problem.B > 0 && problem.heads > 0 && problem.Tq > 0 && problem.Dv > 0;
  return outputs && (problem.P > 0 || problem.Tk > 0);
}

// The constants of kernels/common/attention_scores.h and attention_rows.h.
void add_constants(Launch& launch, const Problem& problem, bool vector) {
  auto add = [&, index = uint16_t{0}](bool value) mutable {
    launch.constants.push_back(FunctionConstant::boolean(index++, value));
  };
  const bool pairs = has_pairs(problem);
  add(pairs);
  add(pairs && problem.Tk > 0);
  add(pairs && problem.P > 0);
  add(pairs && problem.mask_kind != AttentionMask::none);
  add(problem.mask_kind == AttentionMask::additive);
  add(pairs && problem.starts.has_value());
  add(pairs && problem.lengths.has_value());
  add(problem.softcap != 0.0f);
  add(vector);
}

Argument bound(const std::optional<AttentionOperand>& x, bool present = true) {
  return x && present ? Argument::input(x->input) : Argument::unused();
}

// Buffers 0 to 7 of every kernel that computes scores. Rows of no columns have no memory: v stands in for what is not
// read.
void add_operands(Launch& launch, const Problem& problem) {
  const bool pairs = has_pairs(problem);
  const bool own = pairs && problem.Tk > 0;
  const bool prefix = pairs && problem.P > 0;
  const bool flat = problem.D == 0;
  const auto& values = own ? std::optional(problem.v) : problem.prefix_v;
  launch.arguments.push_back(bound(flat ? values : problem.q, pairs));
  launch.arguments.push_back(bound(flat ? problem.v : problem.k, own));
  launch.arguments.push_back(bound(problem.v, own));
  launch.arguments.push_back(bound(flat ? problem.prefix_v : problem.prefix_k, prefix));
  launch.arguments.push_back(bound(problem.prefix_v, prefix));
  launch.arguments.push_back(bound(problem.mask, pairs && problem.mask_kind != AttentionMask::none));
  launch.arguments.push_back(bound(problem.starts, pairs));
  launch.arguments.push_back(bound(problem.lengths, pairs));
}

struct KernelRule {
  bool (*applies)(const Problem& problem, const DeviceProfile& device);
  AttentionKernelChoice choice;
};

// Cooperative tensors as inputs were announced with macOS 26.3; MLX uses them from 26.2 on.
constexpr MacosVersion cooperative_inputs_macos{26, 3};

bool runs_on_matrix_units(const Problem& problem, const DeviceProfile& device) {
  const bool truncates = problem.dtype != mlx::core::float32 || problem.relaxed;
  return device.has(Capability::tensorops) && device.macos >= cooperative_inputs_macos && truncates;
}

// Queries of one head, and of all heads that share keys, that pass by vectors: MLX's limits for its vector kernel.
constexpr int32_t vector_queries = 8;
constexpr int32_t vector_rows = 32;

bool passes_by_vectors(const Problem& problem) {
  const int64_t rows = int64_t{problem.Tq} * (problem.heads / problem.kv_heads);
  const bool fits = std::max(problem.D, problem.Dv) <= heads_of_tensorops.back();
  return problem.Tq <= vector_queries && rows <= vector_rows && fits;
}

// The first that applies.
constexpr std::array kernel_rules{
    KernelRule{
        [](const Problem& problem, const DeviceProfile&) { return passes_by_vectors(problem); },
        {AttentionKernelKind::vector, "few queries: reading the keys once is all there is to gain"}
    },
    KernelRule{
        [](const Problem& problem, const DeviceProfile& device) { return runs_on_matrix_units(problem, device); },
        {AttentionKernelKind::tensorops, "tiles of queries on the matrix units: 16 bits, or float32 cut to tf32"}
    },
    KernelRule{
        [](const Problem&, const DeviceProfile&) { return true; },
        {AttentionKernelKind::portable, "tiles of queries on simdgroup_matrix"}
    },
};

// How a kernel cuts its work: rows of a tile, threads of a threadgroup, columns of the output.
struct TileShape {
  const Kernel* kernel;
  int32_t rows;
  int32_t columns;
  uint32_t threads;
};

// attention.metal: four simdgroups of 8 rows, twice as many where their sums would not fit into registers.
TileShape portable_tile(const Problem& problem) {
  static const KernelTable kernels("tiles", "attention", Capability::portable, heads_of_tiles);
  const size_t head = fitting(heads_of_tiles, std::max(problem.D, problem.Dv));
  const int32_t columns = heads_of_tiles[head];
  return {kernels(problem.dtype, head), 32, columns, columns > 256 ? 256u : 128u};
}

// attention_tensorops.metal: a simdgroup has 16 rows and 128 columns of the sums at most.
TileShape tensorops_tile(const Problem& problem) {
  static const KernelTable kernels("tensorops", "attention_tensorops", Capability::tensorops, heads_of_tensorops);
  const size_t head = fitting(heads_of_tensorops, problem.Dv);
  const int32_t columns = heads_of_tensorops[head];
  return {kernels(problem.dtype, head), columns > 256 ? 32 : 64, columns, columns > 128 ? 256u : 128u};
}

void add_tiles(Plan& plan, const Problem& problem, const TileShape& tile) {
  plan.launches.push_back({});
  Launch& launch = plan.launches.back();
  launch.kernel = tile.kernel;
  add_constants(launch, problem, all_in_runs_of_four(problem));
  launch.constants.push_back(FunctionConstant::boolean(9, problem.sinks.has_value()));
  launch.constants.push_back(FunctionConstant::boolean(10, problem.saves_ends));
  add_operands(launch, problem);
  launch.arguments.push_back(bound(problem.sinks));
  launch.arguments.push_back(Argument::output(0));
  launch.arguments.push_back(problem.saves_ends ? Argument::output(1) : Argument::unused());
  AttentionArgs args = args_of(problem);
  args.column_parts = ceil_div(problem.Dv, tile.columns);
  launch.push_bytes(args);
  const int64_t tiles = int64_t{ceil_div(problem.Tq, tile.rows)} * args.column_parts;
  launch.grid = {unsigned_of(tiles), unsigned_of(problem.heads), unsigned_of(problem.B)};
  launch.group = {tile.threads, 1, 1};
}

// Up to so many keys one threadgroup passes over all of them: from there on MLX passes twice as well. Beyond, splits
// are at least 256 keys long, 32 to each simdgroup, and 64 at most. All this depends on one row's shape alone.
constexpr int32_t whole_keys = 1024;
constexpr int32_t least_split_keys = 256;
constexpr int32_t most_splits = 64;
constexpr int32_t split_unit = 32;

// The most keys that the queries may see, from the multiple of 32 on at or before the first.
int64_t keys_in_reach(const AttentionArgs& args) {
  const int64_t keys = int64_t{args.P} + args.Tk;
  if (args.reach_left == ATTENTION_UNLIMITED) {
    return keys;
  }
  const int64_t right = std::min<int64_t>(args.reach_right, keys);
  return std::min(keys, args.reach_left + right + args.Tq + split_unit);
}

int32_t keys_of_split(int64_t keys) {
  if (keys <= whole_keys) {
    return whole_keys;
  }
  const int64_t least = (keys + most_splits - 1) / most_splits;
  return std::max(least_split_keys, static_cast<int32_t>((least + split_unit - 1) / split_unit * split_unit));
}

// Kernels by the columns of a row and by the rows that share a pass: fewer where a row fills the registers.
const Kernel* vector_kernel(const Problem& problem, bool single) {
  static const KernelTable one("vector", "attention", Capability::portable, heads_of_tensorops, {1, 1, 1, 1});
  static const KernelTable several("vector", "attention", Capability::portable, heads_of_tensorops, {4, 4, 4, 2});
  return (single ? one : several)(problem.dtype, fitting(heads_of_tensorops, std::max(problem.D, problem.Dv)));
}

void add_vectors(Plan& plan, const Problem& problem) {
  static const TypedKernels combine("attention_combine", "attention");
  AttentionArgs args = args_of(problem);
  const int64_t keys = keys_in_reach(args);
  args.split_keys = keys_of_split(keys);
  args.splits = std::max(1, static_cast<int32_t>((keys + args.split_keys - 1) / args.split_keys));
  const bool whole = args.splits == 1;
  const int32_t rows = problem.heads / problem.kv_heads * problem.Tq;
  const int32_t rows_of_pass = rows == 1 ? 1 : std::max(problem.D, problem.Dv) > 256 ? 2 : 4;
  const int64_t splits = int64_t{problem.B} * problem.heads * problem.Tq * args.splits;
  const Argument output = Argument::output(0);
  const Argument ends = problem.saves_ends ? Argument::output(1) : Argument::unused();
  const Argument split_sums = whole ? Argument::unused() : plan.add_scratch(splits * problem.Dv * sizeof(float));
  const Argument split_ends = whole ? Argument::unused() : plan.add_scratch(splits * 2 * sizeof(float));

  plan.launches.push_back({});
  Launch& launch = plan.launches.back();
  launch.kernel = vector_kernel(problem, rows_of_pass == 1);
  add_constants(launch, problem, all_in_runs_of_four(problem));
  launch.constants.push_back(FunctionConstant::boolean(9, whole && problem.sinks));
  launch.constants.push_back(FunctionConstant::boolean(10, whole && problem.saves_ends));
  launch.constants.push_back(FunctionConstant::boolean(11, !whole));
  launch.constants.push_back(FunctionConstant::boolean(12, whole));
  add_operands(launch, problem);
  launch.arguments.push_back(bound(problem.sinks, whole));
  launch.arguments.push_back(whole ? output : Argument::unused());
  launch.arguments.push_back(whole ? ends : Argument::unused());
  launch.push_bytes(args);
  launch.arguments.push_back(split_sums);
  launch.arguments.push_back(split_ends);
  const int64_t passes = int64_t{ceil_div(rows, rows_of_pass)} * args.splits;
  launch.grid = {unsigned_of(passes), unsigned_of(problem.kv_heads), unsigned_of(problem.B)};
  launch.group = {256, 1, 1};
  if (whole) {
    return;
  }

  plan.launches.push_back({});
  Launch& last = plan.launches.back();
  last.kernel = combine.of(problem.dtype);
  last.constants.push_back(FunctionConstant::boolean(9, problem.sinks.has_value()));
  last.constants.push_back(FunctionConstant::boolean(10, problem.saves_ends));
  last.arguments.push_back(Argument::scratch_in(split_sums.index));
  last.arguments.push_back(Argument::scratch_in(split_ends.index));
  last.arguments.push_back(bound(problem.sinks));
  last.arguments.push_back(output);
  last.arguments.push_back(ends);
  last.push_bytes(args);
  last.grid = {unsigned_of(problem.Tq), unsigned_of(problem.heads), unsigned_of(problem.B)};
  last.group = {128, 1, 1};
}

// The gradients by queries, and by keys: kernels/attention_grad.metal and attention_grad_tensorops.metal. dk and dv are
// twice the sums, so that their columns are divided among more simdgroups.
struct GradTiles {
  TileShape queries;
  TileShape keys;
};

constexpr const char* grad_family = "attention_grad";

GradTiles portable_grad_tiles(const Problem& problem) {
  constexpr auto portable = Capability::portable;
  static const KernelTable of_queries("grad_queries", grad_family, portable, heads_of_tiles);
  static const KernelTable of_keys("grad_keys", grad_family, portable, heads_of_tiles);
  const size_t head = fitting(heads_of_tiles, std::max(problem.D, problem.Dv));
  const int32_t columns = heads_of_tiles[head];
  return {
      {of_queries(problem.dtype, head), 32, columns, columns > 256 ? 256u : 128u},
      {of_keys(problem.dtype, head), columns > 256 ? 16 : 32, columns, columns > 128 ? 256u : 128u}
  };
}

GradTiles tensorops_grad_tiles(const Problem& problem) {
  constexpr auto tensorops = Capability::tensorops;
  constexpr const char* family = "attention_grad_tensorops";
  static const KernelTable of_queries("grad_tensorops_queries", family, tensorops, heads_of_tensorops);
  static const KernelTable of_keys("grad_tensorops_keys", family, tensorops, heads_of_tensorops);
  const size_t head = fitting(heads_of_tensorops, std::max(problem.D, problem.Dv));
  const int32_t columns = heads_of_tensorops[head];
  return {
      {of_queries(problem.dtype, head), columns > 256 ? 32 : 64, columns, columns > 128 ? 256u : 128u},
      {of_keys(problem.dtype, head), std::min(64, 8192 / columns), columns, columns > 64 ? 256u : 128u}
  };
}

// Builds the launches of one plan.
class GradPlanner {
 public:
  GradPlanner(const AttentionGradProblem& problem, const DeviceProfile& device)
      : problem_(problem), forward_(problem.forward), pairs_(has_pairs(forward_)) {
    const size_t itemsize = forward_.dtype.size();
    vector_ = all_in_runs_of_four(forward_) && in_runs_of_four(problem.dout, itemsize);
    args_.forward = args_of(forward_);
    args_.out = strides_of(problem.out);
    args_.ends = strides_of(problem.ends);
    args_.dout = strides_of(problem.dout);
    std::copy(problem.mask_shape.begin(), problem.mask_shape.end(), args_.mask_shape);
    tiles_ = runs_on_matrix_units(forward_, device) ? tensorops_grad_tiles(forward_) : portable_grad_tiles(forward_);
    const int32_t columns = std::max(forward_.D, forward_.Dv);
    args_.forward.column_parts = std::max(1, ceil_div(columns, tiles_.queries.columns));
  }

  Plan plan() {
    if (pairs_) {
      add_delta();
    }
    if (problem_.dq && has_elements(forward_.B, forward_.heads, forward_.Tq, forward_.D)) {
      add_queries();
    }
    if (problem_.dv && has_elements(forward_.B, forward_.kv_heads, forward_.Tk, forward_.D + forward_.Dv)) {
      add_keys(*problem_.dk, *problem_.dv, false);
    }
    if (problem_.dprefix_v && has_elements(1, forward_.kv_heads, forward_.P, forward_.D + forward_.Dv)) {
      add_keys(*problem_.dprefix_k, *problem_.dprefix_v, true);
    }
    const auto& mask = problem_.mask_shape;
    if (problem_.dmask && has_elements(mask[0], mask[1], mask[2], mask[3])) {
      add_mask();
    }
    if (problem_.dsinks && forward_.heads > 0) {
      add_sinks();
    }
    return plan_;
  }

 private:
  static bool has_elements(int32_t a, int32_t b, int32_t c, int32_t d) {
    return a > 0 && b > 0 && c > 0 && d > 0;
  }

  Launch& add_launch(const Kernel* kernel, const Size3& grid, uint32_t threads) {
    plan_.launches.push_back({});
    Launch& launch = plan_.launches.back();
    launch.kernel = kernel;
    launch.grid = grid;
    launch.group = {threads, 1, 1};
    return launch;
  }

  Argument saved(const AttentionOperand& x) const {
    return bound(x, pairs_);
  }

  Argument delta() const {
    return pairs_ ? Argument::scratch_in(delta_.index) : Argument::unused();
  }

  // Buffers 0 to 10 of the kernels that compute scores.
  void add_scores(Launch& launch) const {
    add_constants(launch, forward_, vector_);
    add_operands(launch, forward_);
    launch.arguments.push_back(saved(problem_.dout));
    launch.arguments.push_back(saved(problem_.ends));
    launch.arguments.push_back(delta());
  }

  void add_delta() {
    static const TypedKernels kernels("attention_delta", grad_family);
    const int64_t queries = int64_t{forward_.B} * forward_.heads * forward_.Tq;
    delta_ = plan_.add_scratch(static_cast<size_t>(queries) * sizeof(float));
    const Size3 grid{unsigned_of(ceil_div(forward_.Tq, 8)), unsigned_of(forward_.heads), unsigned_of(forward_.B)};
    Launch& launch = add_launch(kernels.of(forward_.dtype), grid, 256);
    launch.arguments.push_back(Argument::input(problem_.out.input));
    launch.arguments.push_back(Argument::input(problem_.dout.input));
    launch.arguments.push_back(delta_);
    launch.push_bytes(args_);
  }

  Size3 grid_of_tiles(int32_t rows, const TileShape& tile, int32_t heads, int32_t batch) const {
    const int64_t tiles = int64_t{ceil_div(rows, tile.rows)} * args_.forward.column_parts;
    return {unsigned_of(tiles), unsigned_of(heads), unsigned_of(batch)};
  }

  void add_queries() {
    const TileShape& tile = tiles_.queries;
    Launch& launch =
        add_launch(tile.kernel, grid_of_tiles(forward_.Tq, tile, forward_.heads, forward_.B), tile.threads);
    add_scores(launch);
    launch.arguments.push_back(Argument::output(*problem_.dq));
    launch.push_bytes(args_);
  }

  void add_keys(uint8_t dk, uint8_t dv, bool of_prefix) {
    const TileShape& tile = tiles_.keys;
    const Size3 grid = of_prefix ? grid_of_tiles(forward_.P, tile, forward_.kv_heads, 1)
                                 : grid_of_tiles(forward_.Tk, tile, forward_.kv_heads, forward_.B);
    Launch& launch = add_launch(tile.kernel, grid, tile.threads);
    add_scores(launch);
    launch.constants.push_back(FunctionConstant::boolean(9, of_prefix));
    launch.constants.push_back(FunctionConstant::boolean(10, forward_.D > 0));
    launch.constants.push_back(FunctionConstant::boolean(11, forward_.Dv > 0));
    launch.arguments.push_back(forward_.D > 0 ? Argument::output(dk) : Argument::unused());
    launch.arguments.push_back(forward_.Dv > 0 ? Argument::output(dv) : Argument::unused());
    launch.push_bytes(args_);
  }

  void add_mask() {
    static const TypedKernels kernels("attention_grad_mask", grad_family);
    constexpr int32_t tile = 32; // queries, and keys
    const auto& shape = problem_.mask_shape;
    const Size3 grid{
        unsigned_of(ceil_div(shape[3], tile)),
        unsigned_of(ceil_div(shape[2], tile)),
        unsigned_of(int64_t{shape[0]} * shape[1])
    };
    Launch& launch = add_launch(kernels.of(forward_.dtype), grid, 128);
    add_scores(launch);
    launch.arguments.push_back(Argument::output(*problem_.dmask));
    launch.push_bytes(args_);
  }

  void add_sinks() {
    static const Kernel* kernel = intern_kernel("attention_grad_sinks", grad_family, Capability::portable);
    Launch& launch = add_launch(kernel, {unsigned_of(forward_.heads), 1, 1}, 256);
    launch.constants.push_back(FunctionConstant::boolean(0, pairs_));
    launch.arguments.push_back(bound(forward_.sinks));
    launch.arguments.push_back(saved(problem_.ends));
    launch.arguments.push_back(delta());
    launch.arguments.push_back(Argument::output(*problem_.dsinks));
    launch.push_bytes(args_);
  }

  const AttentionGradProblem& problem_;
  const AttentionProblem& forward_;
  bool pairs_;
  bool vector_ = false;
  GradTiles tiles_;
  AttentionGradArgs args_{};
  Argument delta_;
  Plan plan_;
};

} // namespace

AttentionKernelChoice choose_attention_kernel(const Problem& problem, const DeviceProfile& device) {
  return std::find_if(
             kernel_rules.begin(), kernel_rules.end(), [&](const auto& rule) { return rule.applies(problem, device); }
  )->choice;
}

Plan plan_attention(const Problem& problem, const DeviceProfile& device) {
  Plan plan;
  if (problem.B == 0 || problem.heads == 0 || problem.Tq == 0 || problem.Dv == 0) {
    return plan;
  }
  const auto kind = choose_attention_kernel(problem, device).kind;
  if (kind == AttentionKernelKind::vector) {
    add_vectors(plan, problem);
  } else {
    add_tiles(plan, problem, kind == AttentionKernelKind::tensorops ? tensorops_tile(problem) : portable_tile(problem));
  }
  return plan;
}

Plan plan_attention_grad(const AttentionGradProblem& problem, const DeviceProfile& device) {
  return GradPlanner(problem, device).plan();
}

} // namespace tessl
