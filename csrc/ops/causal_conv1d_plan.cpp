#include "ops/causal_conv1d_plan.h"

#include "kernels/args/gated_delta.h"
#include "launch/typed_kernels.h"

namespace tessl {
namespace {

// The last strides of an operand; 0 where it has no such dimension, or one member of it.
template <size_t N>
void set_strides(int64_t (&strides)[N], const Operand& x) {
  for (size_t i = 0; i < x.shape.size(); ++i) {
    const size_t d = x.shape.size() - 1 - i;
    strides[N - 1 - i] = x.shape[d] == 1 ? 0 : x.strides[d];
  }
}

} // namespace

Plan plan_causal_conv1d(const CausalConv1dProblem& p) {
  static const TypedKernels kernels("causal_conv1d", "causal_conv1d");
  const int B = p.x.shape[0];
  const int T = p.x.shape[1];
  const int C = p.x.shape[2];
  const int K = p.weight.shape[1];
  Plan plan;
  plan.launches.push_back({});
  Launch& launch = plan.launches.back();
  launch.kernel = kernels.of(p.dtype);
  launch.constants = {
      FunctionConstant::boolean(0, p.starts.has_value()),
      FunctionConstant::boolean(1, p.lengths.has_value()),
      FunctionConstant::boolean(2, p.state.has_value()),
      FunctionConstant::boolean(3, p.with_silu),
  };
  CausalConv1dArgs args{T, C, K, 0, {}, {}, {}, 0, 0};
  set_strides(args.x_strides, p.x);
  set_strides(args.weight_strides, p.weight);
  if (p.state) {
    set_strides(args.state_strides, *p.state);
  }
  args.starts_stride = p.starts ? p.starts->strides[0] : 0;
  args.lengths_stride = p.lengths ? p.lengths->strides[0] : 0;
  launch.arguments = {Argument::input(0), Argument::input(1)};
  uint8_t next = 2;
  for (const auto* optional : {&p.state, &p.starts, &p.lengths}) {
    launch.arguments.push_back(*optional ? Argument::input(next++) : Argument::unused());
  }
  launch.arguments.push_back(Argument::output(0));
  launch.arguments.push_back(Argument::output(1));
  launch.push_bytes(args);
  // A thread for each channel of each row of y and of the new state.
  launch.group = {64, 4, 1};
  launch.grid = {
      static_cast<uint32_t>((C + 63) / 64), static_cast<uint32_t>((T + K - 1 + 3) / 4), static_cast<uint32_t>(B)
  };
  return plan;
}

} // namespace tessl
