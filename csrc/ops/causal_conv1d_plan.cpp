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

CausalConv1dArgs args_of(const CausalConv1dProblem& p) {
  CausalConv1dArgs args{p.x.shape[1], p.x.shape[2], p.weight.shape[1], 0, {}, {}, {}, 0, 0};
  set_strides(args.x_strides, p.x);
  set_strides(args.weight_strides, p.weight);
  if (p.state) {
    set_strides(args.state_strides, *p.state);
  }
  args.starts_stride = p.starts ? p.starts->strides[0] : 0;
  args.lengths_stride = p.lengths ? p.lengths->strides[0] : 0;
  return args;
}

// Where each operand after x and the weight stands in the primitive's inputs, and what follows them.
struct Places {
  Argument state, starts, lengths;
  uint8_t next = 2;

  explicit Places(const CausalConv1dProblem& p) {
    auto take = [this](bool is_there) { return is_there ? Argument::input(next++) : Argument::unused(); };
    state = take(p.state.has_value());
    starts = take(p.starts.has_value());
    lengths = take(p.lengths.has_value());
  }
};

// A thread for each channel of `rows` rows, `depth` times over.
Launch& add_launch(Plan& plan, const CausalConv1dProblem& p, const Kernel* kernel, int rows, int depth) {
  plan.launches.push_back({});
  Launch& launch = plan.launches.back();
  launch.kernel = kernel;
  launch.constants = {
      FunctionConstant::boolean(0, p.starts.has_value()),
      FunctionConstant::boolean(1, p.lengths.has_value()),
      FunctionConstant::boolean(2, p.state.has_value()),
      FunctionConstant::boolean(3, p.with_silu),
  };
  launch.group = {64, 4, 1};
  launch.grid = {
      static_cast<uint32_t>((p.x.shape[2] + 63) / 64),
      static_cast<uint32_t>((rows + 3) / 4),
      static_cast<uint32_t>(depth)
  };
  return launch;
}

} // namespace

Plan plan_causal_conv1d(const CausalConv1dProblem& p) {
  static const TypedKernels kernels("causal_conv1d", "causal_conv1d");
  const auto args = args_of(p);
  const Places places(p);
  Plan plan;
  Launch& launch = add_launch(plan, p, kernels.of(p.dtype), args.T + args.K - 1, p.x.shape[0]); // y, the new state
  launch.arguments = {
      Argument::input(0),
      Argument::input(1),
      places.state,
      places.starts,
      places.lengths,
      Argument::output(0),
      Argument::output(1)
  };
  launch.push_bytes(args);
  return plan;
}

Plan plan_causal_conv1d_grad(const CausalConv1dGradProblem& problem) {
  static const TypedKernels sums("causal_conv1d_grad_sums", "causal_conv1d_grad");
  static const TypedKernels inputs("causal_conv1d_grad_inputs", "causal_conv1d_grad");
  static const TypedKernels weights("causal_conv1d_grad_weights", "causal_conv1d_grad");
  static const TypedKernels reduce("causal_conv1d_grad_reduce", "causal_conv1d_grad");
  const auto& p = problem.forward;
  CausalConv1dGradArgs args{};
  args.forward = args_of(p);
  args.B = p.x.shape[0];
  args.blocks = (args.forward.T + CAUSAL_CONV1D_BLOCK - 1) / CAUSAL_CONV1D_BLOCK;
  set_strides(args.dy_strides, problem.dy);
  set_strides(args.dlast_strides, problem.dlast);
  const int T = args.forward.T;
  const int C = args.forward.C;
  const int K = args.forward.K;
  const Places places(p);
  const Argument x = Argument::input(0);
  const Argument weight = Argument::input(1);

  Plan plan;
  const size_t row = static_cast<size_t>(C) * sizeof(float);
  const size_t parts = static_cast<size_t>(args.B) * args.blocks;
  const Argument ds = plan.add_scratch(static_cast<size_t>(args.B) * T * row);
  const Argument part_sums = plan.add_scratch(parts * K * row);
  const Argument read_ds = Argument::scratch_in(ds.index);

  Launch& of_sums = add_launch(plan, p, sums.of(p.dtype), T, args.B);
  of_sums.arguments = {x, weight, places.state, places.starts, places.lengths, Argument::input(places.next), ds};
  of_sums.push_bytes(args);

  Launch& of_inputs = add_launch(plan, p, inputs.of(p.dtype), T + K - 1, args.B);
  of_inputs.arguments = {
      weight,
      places.starts,
      places.lengths,
      read_ds,
      Argument::input(places.next + 1),
      Argument::output(0),
      Argument::output(2)
  };
  of_inputs.push_bytes(args);

  Launch& of_weights = add_launch(plan, p, weights.of(p.dtype), K, static_cast<int>(parts));
  of_weights.arguments = {x, places.state, places.starts, places.lengths, read_ds, part_sums};
  of_weights.push_bytes(args);

  Launch& of_parts = add_launch(plan, p, reduce.of(p.dtype), K, 1);
  of_parts.arguments = {Argument::scratch_in(part_sums.index), Argument::output(1)};
  of_parts.push_bytes(args);
  return plan;
}

} // namespace tessl
