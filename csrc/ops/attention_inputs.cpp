#include "ops/attention_inputs.h"

#include "backends/cpu/elements.h"

namespace tessl {
namespace {

cpu::BoundsView bounds_view(const std::vector<mx::array>& inputs, const std::optional<AttentionOperand>& operand) {
  return operand ? cpu::BoundsView{inputs[operand->input].data<int32_t>(), operand->strides[0]} : cpu::BoundsView{};
}

} // namespace

AttentionInputs AttentionInputs::from(const std::vector<mx::array>& inputs, const AttentionParameters& parameters) {
  size_t next = 3;
  auto take = [&](bool present) { return present ? std::optional(inputs[next++]) : std::nullopt; };
  const auto prefix_k = take(parameters.prefix);
  const auto prefix_v = take(parameters.prefix);
  const auto mask = take(parameters.mask_kind != AttentionMask::none);
  const auto starts = take(parameters.starts);
  const auto lengths = take(parameters.lengths);
  return {inputs[0], inputs[1], inputs[2], prefix_k, prefix_v, mask, starts, lengths, take(parameters.sinks)};
}

std::vector<mx::array> AttentionInputs::list() const {
  std::vector<mx::array> arrays{q, k, v};
  for (const auto* array : {&prefix_k, &prefix_v, &mask, &starts, &lengths, &sinks}) {
    if (*array) {
      arrays.push_back(**array);
    }
  }
  return arrays;
}

mx::Shape AttentionInputs::output_shape() const {
  return {q.shape(0), q.shape(1), q.shape(2), v.shape(3)};
}

mx::Shape AttentionInputs::ends_shape() const {
  return {q.shape(0), q.shape(1), q.shape(2), 2};
}

AttentionOperand attention_operand(const mx::array& x, uint8_t input, int trailing) {
  AttentionOperand operand{input, static_cast<int64_t>(x.offset()), {}};
  const int first = 4 - trailing - static_cast<int>(x.ndim());
  for (int i = 0; i < static_cast<int>(x.ndim()); ++i) {
    operand.strides[first + i] = x.shape(i) == 1 ? 0 : x.strides(i);
  }
  return operand;
}

AttentionProblem make_attention_problem(const AttentionInputs& inputs, const AttentionParameters& parameters) {
  const auto& [q, k, v, prefix_k, prefix_v, mask, starts, lengths, sinks] = inputs;
  AttentionProblem problem;
  problem.dtype = q.dtype();
  problem.B = q.shape(0);
  problem.heads = q.shape(1);
  problem.kv_heads = k.shape(1);
  problem.Tq = q.shape(2);
  problem.Tk = k.shape(2);
  problem.P = prefix_k ? prefix_k->shape(1) : 0;
  problem.D = q.shape(3);
  problem.Dv = v.shape(3);
  uint8_t next = 3;
  auto take = [&](const std::optional<mx::array>& array, int trailing) {
    return array ? std::optional(attention_operand(*array, next++, trailing)) : std::nullopt;
  };
  problem.q = attention_operand(q, 0);
  problem.k = attention_operand(k, 1);
  problem.v = attention_operand(v, 2);
  problem.prefix_k = take(prefix_k, 0);
  problem.prefix_v = take(prefix_v, 0);
  problem.mask = take(mask, 0);
  problem.starts = take(starts, 3);
  problem.lengths = take(lengths, 3);
  problem.sinks = take(sinks, 3);
  problem.mask_kind = parameters.mask_kind;
  problem.causal = parameters.causal;
  problem.window_left = parameters.window_left;
  problem.window_right = parameters.window_right;
  problem.scale = parameters.scale;
  problem.softcap = parameters.softcap;
  problem.relaxed = parameters.relaxed;
  problem.saves_ends = true;
  return problem;
}

cpu::HeadsView heads_view(const std::vector<mx::array>& inputs, const std::optional<AttentionOperand>& operand) {
  return operand ? cpu::HeadsView{inputs[operand->input].data<char>(), operand->strides} : cpu::HeadsView{};
}

cpu::Attention make_cpu_attention(const AttentionProblem& problem, const std::vector<mx::array>& inputs) {
  const auto& sinks = problem.sinks;
  return {
      .element = cpu::element_of(problem.dtype),
      .B = problem.B,
      .heads = problem.heads,
      .kv_heads = problem.kv_heads,
      .Tq = problem.Tq,
      .Tk = problem.Tk,
      .P = problem.P,
      .D = problem.D,
      .Dv = problem.Dv,
      .q = heads_view(inputs, problem.q),
      .k = heads_view(inputs, problem.k),
      .v = heads_view(inputs, problem.v),
      .prefix_k = heads_view(inputs, problem.prefix_k),
      .prefix_v = heads_view(inputs, problem.prefix_v),
      .mask = heads_view(inputs, problem.mask),
      .boolean_mask = problem.mask_kind == AttentionMask::boolean,
      .starts = bounds_view(inputs, problem.starts),
      .lengths = bounds_view(inputs, problem.lengths),
      .sinks = sinks ? inputs[sinks->input].data<float>() : nullptr,
      .sinks_stride = sinks ? sinks->strides[0] : 0,
      .causal = problem.causal,
      .window_left = problem.window_left,
      .window_right = problem.window_right,
      .scale = problem.scale,
      .softcap = problem.softcap,
  };
}

} // namespace tessl
