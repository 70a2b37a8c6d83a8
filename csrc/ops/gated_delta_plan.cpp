#include "ops/gated_delta_plan.h"

#include <algorithm>
#include <array>
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

} // namespace

Plan plan_gated_delta(const GatedDeltaProblem& p) {
  const auto& form = p.form;
  const int Dv = p.v.shape[3];
  Plan plan;
  plan.launches.push_back({});
  Launch& launch = plan.launches.back();
  launch.kernel = kernel_of(p.dtype, p.q.shape[3]);
  launch.constants = {
      FunctionConstant::boolean(0, form.has_starts),
      FunctionConstant::boolean(1, form.has_lengths),
      FunctionConstant::boolean(2, form.has_gates),
      FunctionConstant::boolean(3, form.has_state),
      FunctionConstant::boolean(4, form.normalize_qk),
      FunctionConstant::boolean(5, !form.has_gates),
  };

  uint8_t next = 5;
  auto input_if = [&next](bool is_there) { return is_there ? Argument::input(next++) : Argument::unused(); };
  const Argument state = input_if(form.has_state);
  const Argument starts = input_if(form.has_starts);
  const Argument lengths = input_if(form.has_lengths);
  const Argument A_log = input_if(form.has_gates);
  const Argument dt_bias = input_if(form.has_gates);
  for (uint8_t i = 0; i < 3; ++i) {
    launch.arguments.push_back(Argument::input(i));
  }
  for (const bool is_there : {!form.has_gates, form.has_gates}) {
    launch.arguments.push_back(is_there ? Argument::input(3) : Argument::unused());
    launch.arguments.push_back(is_there ? Argument::input(4) : Argument::unused());
  }
  for (const auto& argument : {A_log, dt_bias, state, starts, lengths, Argument::output(0), Argument::output(1)}) {
    launch.arguments.push_back(argument);
  }

  GatedDeltaArgs args{
      p.q.shape[1], p.q.shape[2], p.v.shape[2], p.q.shape[3], Dv, 0, {}, {}, {}, {}, {}, {}, 0, 0, 0, 0
  };
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
  launch.push_bytes(args);

  launch.group = {32 * simdgroups, 1, 1};
  launch.grid = {
      static_cast<uint32_t>((Dv + rows_of_group - 1) / rows_of_group),
      static_cast<uint32_t>(p.v.shape[2]),
      static_cast<uint32_t>(p.q.shape[0])
  };
  return plan;
}

} // namespace tessl
