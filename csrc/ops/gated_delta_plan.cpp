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

void add_chunks(Plan& plan, const GatedDeltaProblem& p) {
  static const TypedKernels prepare("gated_delta_prepare", "gated_delta_chunks");
  static const TypedKernels scan("gated_delta_scan", "gated_delta_chunks");
  constexpr int slice = 16;
  const Places places(p.form);
  const auto args = args_of(p);
  const size_t chunks = static_cast<size_t>(p.q.shape[0]) * args.Hv * args.chunks;
  const Argument prepared = plan.add_scratch(chunks * GATED_DELTA_PREPARED * sizeof(float));
  Launch& first = add_launch(plan, p, prepare.of(p.dtype), args.chunks);
  bind(first, {Argument::input(0), Argument::input(1)});
  bind_gates(first, p.form, places);
  bind(first, {places.starts, places.lengths, prepared});
  first.push_bytes(args);
  Launch& second = add_launch(plan, p, scan.of(p.dtype), (args.Dv + slice - 1) / slice);
  bind(second, {Argument::input(0), Argument::input(1), Argument::input(2), Argument::scratch_in(prepared.index)});
  bind(second, {places.state, places.starts, places.lengths, Argument::output(0), Argument::output(1)});
  second.push_bytes(args);
}

} // namespace

// Rows of a ragged batch may be short: they go the way that they would go alone.
Plan plan_gated_delta(const GatedDeltaProblem& p) {
  Plan plan;
  if (p.q.shape[1] < GATED_DELTA_FEW_TOKENS || p.q.shape[3] > most_chunk_columns) {
    add_token_by_token(plan, p, false);
    return plan;
  }
  add_chunks(plan, p);
  if (p.form.has_starts || p.form.has_lengths) {
    add_token_by_token(plan, p, true);
  }
  return plan;
}

} // namespace tessl
