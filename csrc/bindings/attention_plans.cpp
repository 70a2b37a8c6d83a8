#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <stdexcept>

#include "bindings/bindings.h"
#include "bindings/plan_values.h"
#include "launch/device_profile.h"
#include "launch/operand.h"
#include "ops/attention_plan.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tessl {
namespace {

using MaybeOperand = std::optional<Operand>;

struct AttentionCall {
  AttentionProblem problem;
  AttentionGradProblem gradients;
  DeviceProfile device;
};

const char* to_string(AttentionKernelKind kind) {
  switch (kind) {
    case AttentionKernelKind::vector:
      return "vector";
    case AttentionKernelKind::portable:
      return "portable";
    case AttentionKernelKind::tensorops:
      return "tensorops";
  }
  return "unknown";
}

// The operand as it stands, its dimensions lined up with [batch, head, row, column] from `first` on.
AttentionOperand place(const Operand& x, uint8_t input, size_t first = 0) {
  AttentionOperand placed{input, x.offset, {}};
  for (size_t d = 0; d < x.shape.size(); ++d) {
    placed.strides[first + d] = x.shape[d] == 1 ? 0 : x.strides[d];
  }
  if (x.shape.size() + first == 4) {
    placed.strides[3] = x.strides.back();
  }
  return placed;
}

// Operands are the primitive's inputs in the order of the arguments, those that are there; for the gradients followed
// by out, ends and dout, which are row-contiguous. The gradients' outputs are dq, dk, dv, dprefix_k, dprefix_v, dmask,
// dsinks, those that there are.
AttentionCall make_call(
    const std::string& dtype,
    const Operand& q,
    const Operand& k,
    const Operand& v,
    const MaybeOperand& prefix_k,
    const MaybeOperand& prefix_v,
    const MaybeOperand& mask,
    bool additive,
    const MaybeOperand& starts,
    const MaybeOperand& lengths,
    const MaybeOperand& sinks,
    bool causal,
    int32_t window_left,
    int32_t window_right,
    float scale,
    float softcap,
    bool relaxed,
    bool saves_ends,
    const std::string& gpu,
    const std::string& macos
) {
  if (q.shape.size() != 4 || k.shape.size() != 4 || v.shape.size() != 4) {
    throw std::invalid_argument("[mlx_tessl.plan] q, k and v have four dimensions");
  }
  AttentionCall call;
  call.device = make_device_profile(gpu, macos);
  AttentionProblem& problem = call.problem;
  problem.dtype = parse_dtype(dtype);
  problem.B = q.shape[0];
  problem.heads = q.shape[1];
  problem.Tq = q.shape[2];
  problem.D = q.shape[3];
  problem.kv_heads = k.shape[1];
  problem.Tk = k.shape[2];
  problem.Dv = v.shape[3];
  problem.causal = causal;
  problem.window_left = window_left;
  problem.window_right = window_right;
  problem.scale = scale;
  problem.softcap = softcap;
  problem.relaxed = relaxed;
  problem.saves_ends = saves_ends;
  problem.q = place(q, 0);
  problem.k = place(k, 1);
  problem.v = place(v, 2);
  uint8_t input = 3;
  uint8_t output = 3;
  AttentionGradProblem& gradients = call.gradients;
  gradients.dq = 0;
  gradients.dk = 1;
  gradients.dv = 2;
  if (prefix_k && prefix_v) {
    problem.P = prefix_k->shape[1];
    problem.prefix_k = place(*prefix_k, input++, 1);
    problem.prefix_v = place(*prefix_v, input++, 1);
    gradients.dprefix_k = output++;
    gradients.dprefix_v = output++;
  }
  if (mask) {
    const size_t first = 4 - mask->shape.size();
    problem.mask_kind = additive ? AttentionMask::additive : AttentionMask::boolean;
    problem.mask = place(*mask, input++, first);
    if (!mask->shape.empty() && mask->shape.back() == 1) {
      problem.mask->strides[3] = 0;
    }
    if (additive) {
      gradients.dmask = output++;
      std::copy(mask->shape.begin(), mask->shape.end(), gradients.mask_shape.begin() + static_cast<int>(first));
    }
  }
  auto vector = [&](const MaybeOperand& x, std::optional<AttentionOperand>& placed) {
    if (x) {
      placed = {input++, x->offset, {x->strides[0], 0, 0, 0}};
    }
  };
  vector(starts, problem.starts);
  vector(lengths, problem.lengths);
  vector(sinks, problem.sinks);
  if (sinks) {
    gradients.dsinks = output++;
  }
  const int64_t rows = problem.Tq;
  gradients.forward = problem;
  gradients.out = {input++, 0, {problem.heads * rows * problem.Dv, rows * problem.Dv, problem.Dv, 1}};
  gradients.ends = {input++, 0, {problem.heads * rows * 2, rows * 2, 2, 1}};
  gradients.dout = {input++, 0, gradients.out.strides};
  return call;
}

} // namespace

void bind_attention_plans(nb::module_& m) {
  auto plan = nb::cast<nb::module_>(m.attr("plan"));
  nb::class_<AttentionCall>(plan, "Attention", "A call of attention on a device, as planning sees it.")
      .def(
          nb::new_(&make_call),
          "dtype"_a,
          "q"_a,
          "k"_a,
          "v"_a,
          nb::kw_only(),
          "prefix_k"_a.none() = nb::none(),
          "prefix_v"_a.none() = nb::none(),
          "mask"_a.none() = nb::none(),
          "additive"_a = false,
          "starts"_a.none() = nb::none(),
          "lengths"_a.none() = nb::none(),
          "sinks"_a.none() = nb::none(),
          "causal"_a = false,
          "window_left"_a = -1,
          "window_right"_a = -1,
          "scale"_a = 1.0f,
          "softcap"_a = 0.0f,
          "relaxed"_a = false,
          "saves_ends"_a = false,
          "gpu"_a,
          "macos"_a
      )
      .def("plan", [](const AttentionCall& call) { return plan_attention(call.problem, call.device); })
      .def("grad_plan", [](const AttentionCall& call) { return plan_attention_grad(call.gradients, call.device); })
      .def_prop_ro(
          "kind",
          [](const AttentionCall& call) { return to_string(choose_attention_kernel(call.problem, call.device).kind); }
      )
      .def_prop_ro("reason", [](const AttentionCall& call) {
        return choose_attention_kernel(call.problem, call.device).reason;
      });
}

} // namespace tessl
