#include "ops/gated_delta_plan.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <string>

#include "kernels/args/gated_delta.h"
#include "launch/typed_kernels.h"

namespace tessl {
namespace {

constexpr int simdgroups = 4;
constexpr int rows_of_group = 4 * simdgroups; // of a head's state
constexpr int slice = 16;                     // columns of V for a threadgroup that scans the chunks

const Kernel* kernel_of(mlx::core::Dtype dtype, int Dk) {
  constexpr std::array columns{32, 64, 128, 256};
  constexpr std::array dtypes{"float32", "float16", "bfloat16"};
  static const auto kernels = [&] {
    std::array<std::array<const Kernel*, columns.size()>, dtypes.size()> result{};
    for (size_t i = 0; i < dtypes.size(); ++i) {
      for (size_t j = 0; j < columns.size(); ++j) {
        const auto name = std::string("gated_delta_") + dtypes[i] + "_" + std::to_string(columns[j]);
        result[i][j] = intern_kernel(name, "gated_delta", Capability::portable);
      }
    }
    return result;
  }();
  const size_t i = dtype == mlx::core::float32 ? 0 : dtype == mlx::core::float16 ? 1 : 2;
  return kernels[i][std::lower_bound(columns.begin(), columns.end(), Dk) - columns.begin()];
}

// The last strides of an operand; 0 where it has no such dimension, or one member of it.
template <size_t N>
void set_strides(int64_t (&strides)[N], const Operand& x) {
  std::fill_n(strides, N, 0);
  for (size_t i = 0; i < std::min(N, x.shape.size()); ++i) {
    const size_t d = x.shape.size() - 1 - i;
    strides[N - 1 - i] = x.shape[d] == 1 ? 0 : x.strides[d];
  }
}

// g, beta, a and b have no columns.
void set_gate_strides(int64_t (&strides)[4], const Operand& x) {
  int64_t of_tokens[3];
  set_strides(of_tokens, x);
  std::copy_n(of_tokens, 3, strides);
  strides[3] = 0;
}

int64_t stride_of(const std::optional<Operand>& x) {
  return x && x->shape[0] != 1 ? x->strides[0] : 0;
}

// Where each operand stands in the primitive's inputs.
struct Places {
  Argument state, starts, lengths, A_log, dt_bias;

  explicit Places(const GatedDeltaForm& form) {
    uint8_t next = 5;
    auto take = [&next](bool is_there) { return is_there ? Argument::input(next++) : Argument::unused(); };
    state = take(form.has_state);
    starts = take(form.has_starts);
    lengths = take(form.has_lengths);
    A_log = take(form.has_gates);
    dt_bias = take(form.has_gates);
  }
};

GatedDeltaArgs args_of(const GatedDeltaProblem& p) {
  const int T = p.q.shape[1];
  const int chunks = (T + GATED_DELTA_CHUNK - 1) / GATED_DELTA_CHUNK;
  GatedDeltaArgs args{};
  args.T = T;
  args.Hk = p.q.shape[2];
  args.Hv = p.v.shape[2];
  args.Dk = p.q.shape[3];
  args.Dv = p.v.shape[3];
  args.chunks = chunks;
  set_strides(args.q_strides, p.q);
  set_strides(args.k_strides, p.k);
  set_strides(args.v_strides, p.v);
  set_gate_strides(args.g_strides, p.g);
  set_gate_strides(args.beta_strides, p.beta);
  if (p.state) {
    set_strides(args.state_strides, *p.state);
  }
  args.A_log_stride = stride_of(p.A_log);
  args.dt_bias_stride = stride_of(p.dt_bias);
  args.starts_stride = stride_of(p.starts);
  args.lengths_stride = stride_of(p.lengths);
  return args;
}

// A launch for all rows and heads, `groups` threadgroups to each, with the constants that all kernels share.
Launch& add_launch(Plan& plan, const GatedDeltaProblem& p, const Kernel* kernel, int groups) {
  const auto& form = p.form;
  plan.launches.push_back({});
  Launch& launch = plan.launches.back();
  launch.kernel = kernel;
  launch.constants = {
      FunctionConstant::boolean(0, form.has_starts),
      FunctionConstant::boolean(1, form.has_lengths),
      FunctionConstant::boolean(2, form.has_gates),
      FunctionConstant::boolean(3, form.has_state),
      FunctionConstant::boolean(4, form.normalize_qk),
      FunctionConstant::boolean(5, !form.has_gates),
  };
  launch.group = {32 * simdgroups, 1, 1};
  launch.grid = {
      static_cast<uint32_t>(groups), static_cast<uint32_t>(p.v.shape[2]), static_cast<uint32_t>(p.q.shape[0])
  };
  return launch;
}

void bind(Launch& launch, std::initializer_list<Argument> arguments) {
  for (const auto& argument : arguments) {
    launch.arguments.push_back(argument);
  }
}

// g and beta, or a and b with A_log and dt_bias.
void bind_gates(Launch& launch, const GatedDeltaForm& form, const Places& places) {
  for (const bool is_there : {!form.has_gates, form.has_gates}) {
    bind(
        launch, {is_there ? Argument::input(3) : Argument::unused(), is_there ? Argument::input(4) : Argument::unused()}
    );
  }
  bind(launch, {places.A_log, places.dt_bias});
}

void add_token_by_token(Plan& plan, const GatedDeltaProblem& p, bool few_only) {
  const Places places(p.form);
  Launch& launch =
      add_launch(plan, p, kernel_of(p.dtype, p.q.shape[3]), (p.v.shape[3] + rows_of_group - 1) / rows_of_group);
  launch.constants.push_back(FunctionConstant::boolean(6, few_only));
  bind(launch, {Argument::input(0), Argument::input(1), Argument::input(2)});
  bind_gates(launch, p.form, places);
  bind(launch, {places.state, places.starts, places.lengths, Argument::output(0), Argument::output(1)});
  launch.push_bytes(args_of(p));
}

Argument read(const Argument& scratch) {
  return Argument::scratch_in(scratch.index);
}

// Chunks of all rows and heads.
size_t all_chunks(const GatedDeltaProblem& p, const GatedDeltaArgs& args) {
  return static_cast<size_t>(p.q.shape[0]) * args.Hv * args.chunks;
}

Argument add_floats(Plan& plan, size_t count) {
  return plan.add_scratch(count * sizeof(float));
}

void push_purpose(Launch& launch, bool for_gradients) {
  launch.constants.push_back(FunctionConstant::boolean(7, for_gradients));
  launch.constants.push_back(FunctionConstant::boolean(8, !for_gradients));
}

Argument add_preparation(Plan& plan, const GatedDeltaProblem& p, const GatedDeltaArgs& args, bool for_gradients) {
  static const TypedKernels kernels("gated_delta_prepare", "gated_delta_chunks");
  const Places places(p.form);
  const Argument prepared = add_floats(plan, all_chunks(p, args) * GATED_DELTA_PREPARED);
  Launch& launch = add_launch(plan, p, kernels.of(p.dtype), args.chunks);
  push_purpose(launch, for_gradients);
  bind(launch, {Argument::input(0), Argument::input(1)});
  bind_gates(launch, p.form, places);
  bind(launch, {places.starts, places.lengths, prepared});
  launch.push_bytes(args);
  return prepared;
}

// A launch that goes over the chunks, before its outputs.
Launch& add_scan(
    Plan& plan, const GatedDeltaProblem& p, const GatedDeltaArgs& args, const Argument& prepared, bool for_gradients
) {
  static const TypedKernels kernels("gated_delta_scan", "gated_delta_chunks");
  const Places places(p.form);
  Launch& launch = add_launch(plan, p, kernels.of(p.dtype), (args.Dv + slice - 1) / slice);
  push_purpose(launch, for_gradients);
  bind(launch, {Argument::input(0), Argument::input(1), Argument::input(2), read(prepared)});
  bind(launch, {places.state, places.starts, places.lengths});
  return launch;
}

// Whether runs of four columns that start at a multiple of four are contiguous and aligned.
bool in_runs_of_four(const Operand& x, size_t itemsize) {
  bool runs = x.strides.back() == 1 && x.offset % static_cast<int64_t>(4 * itemsize) == 0;
  for (size_t d = 0; d + 1 < x.shape.size(); ++d) {
    runs = runs && (x.shape[d] == 1 || x.strides[d] % 4 == 0);
  }
  return runs;
}

void add_tensorops_chunks(Plan& plan, const GatedDeltaProblem& p) {
  constexpr auto capability = Capability::tensorops;
  static const TypedKernels prepare("gated_delta_tensorops_prepare", "gated_delta_tensorops", capability);
  static const TypedKernels scan("gated_delta_tensorops_scan", "gated_delta_tensorops", capability);
  constexpr int values = 32; // for a threadgroup
  const Places places(p.form);
  const auto args = args_of(p);
  const auto vector =
      FunctionConstant::boolean(9, in_runs_of_four(p.q, p.dtype.size()) && in_runs_of_four(p.k, p.dtype.size()));
  const Argument prepared = add_floats(plan, all_chunks(p, args) * GATED_DELTA_PREPARED);

  Launch& first = add_launch(plan, p, prepare.of(p.dtype), args.chunks);
  first.constants.push_back(vector);
  bind(first, {Argument::input(0), Argument::input(1)});
  bind_gates(first, p.form, places);
  bind(first, {places.starts, places.lengths, prepared});
  first.push_bytes(args);

  Launch& second = add_launch(plan, p, scan.of(p.dtype), (args.Dv + values - 1) / values);
  second.constants.push_back(vector);
  bind(second, {Argument::input(0), Argument::input(1), Argument::input(2), read(prepared)});
  bind(second, {places.state, places.starts, places.lengths, Argument::output(0), Argument::output(1)});
  second.push_bytes(args);
}

void add_chunks(Plan& plan, const GatedDeltaProblem& p) {
  const auto args = args_of(p);
  const Argument prepared = add_preparation(plan, p, args, false);
  Launch& scan = add_scan(plan, p, args, prepared, false);
  bind(scan, {Argument::output(0), Argument::output(1), Argument::unused(), Argument::unused()});
  scan.push_bytes(args);
}

} // namespace

// Rows of a ragged batch may be short: they go the way that they would go alone.
Plan plan_gated_delta(const GatedDeltaProblem& p, const DeviceProfile& device) {
  Plan plan;
  if (p.q.shape[1] < GATED_DELTA_FEW_TOKENS || p.q.shape[3] > most_chunk_columns) {
    add_token_by_token(plan, p, false);
    return plan;
  }
  if (p.form.relaxed && device.has(Capability::tensorops)) {
    add_tensorops_chunks(plan, p);
  } else {
    add_chunks(plan, p);
  }
  if (p.form.has_starts || p.form.has_lengths) {
    add_token_by_token(plan, p, true);
  }
  return plan;
}

Plan plan_gated_delta_grad(const GatedDeltaGradProblem& problem) {
  static const TypedKernels scan("gated_delta_grad_scan", "gated_delta_grad");
  static const TypedKernels scores("gated_delta_grad_scores", "gated_delta_grad");
  static const TypedKernels rows("gated_delta_grad_rows", "gated_delta_grad");
  const auto& p = problem.forward;
  GatedDeltaGradArgs args{args_of(p), {}, {}};
  set_strides(args.dy_strides, problem.dy);
  set_strides(args.dfinal_strides, problem.dfinal_state);
  const auto& sizes = args.forward;
  const Places places(p.form);
  const uint8_t dy_place = 6 + p.form.has_starts + p.form.has_lengths;
  const Argument q = Argument::input(0);
  const Argument k = Argument::input(1);
  const Argument v = Argument::input(2);
  const Argument dy = Argument::input(dy_place);
  const Argument dfinal = Argument::input(dy_place + 1);

  Plan plan;
  const Argument prepared = add_preparation(plan, p, sizes, true);
  const size_t heads = static_cast<size_t>(p.q.shape[0]) * sizes.Hv;
  const size_t state = static_cast<size_t>(sizes.Dv) * sizes.Dk;
  const size_t row_floats = all_chunks(p, sizes) * GATED_DELTA_CHUNK * sizes.Dv;
  const Argument S = add_floats(plan, (all_chunks(p, sizes) + heads) * state);
  const Argument dS = add_floats(plan, all_chunks(p, sizes) * state);
  const Argument U = add_floats(plan, row_floats);
  const Argument Z = add_floats(plan, row_floats);

  Launch& forwards = add_scan(plan, p, sizes, prepared, true);
  bind(forwards, {Argument::unused(), Argument::unused(), S, U});
  forwards.push_bytes(sizes);

  Launch& backwards = add_launch(plan, p, scan.of(p.dtype), (sizes.Dv + slice - 1) / slice);
  bind(backwards, {q, k, dy, dfinal, read(prepared), places.starts, places.lengths});
  bind(backwards, {dS, Z, Argument::output(2), Argument::output(5)});
  backwards.push_bytes(args);

  Launch& of_scores = add_launch(plan, p, scores.of(p.dtype), sizes.chunks);
  bind(of_scores, {v, dy, read(U), read(Z), places.starts, places.lengths, prepared});
  of_scores.push_bytes(args);

  Launch& of_rows = add_launch(plan, p, rows.of(p.dtype), sizes.chunks);
  of_rows.grid.y = static_cast<uint32_t>(sizes.Hk);
  bind(of_rows, {q, k, dy, read(prepared), read(S), read(dS), read(U), read(Z), places.starts, places.lengths});
  bind(of_rows, {Argument::output(0), Argument::output(1), Argument::output(3), Argument::output(4)});
  of_rows.push_bytes(args);
  return plan;
}

} // namespace tessl
