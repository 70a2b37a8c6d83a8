#include "ops/attention_inputs.h"

#include <algorithm>

namespace tessl {
namespace {

// Strides of `x`, whose dimensions are the last of the four but for `trailing`.
AttentionOperand operand_of(const mx::array& x, uint8_t input, int trailing = 0) {
  AttentionOperand operand{input, static_cast<int64_t>(x.offset()), {}};
  const int first = 4 - trailing - static_cast<int>(x.ndim());
  for (int i = 0; i < static_cast<int>(x.ndim()); ++i) {
    operand.strides[first + i] = x.shape(i) == 1 ? 0 : x.strides(i);
  }
  return operand;
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

mx::Shape AttentionInputs::lse_shape() const {
  return {q.shape(0), q.shape(1), q.shape(2)};
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
    return array ? std::optional(operand_of(*array, next++, trailing)) : std::nullopt;
  };
  problem.q = operand_of(q, 0);
  problem.k = operand_of(k, 1);
  problem.v = operand_of(v, 2);
  problem.prefix_k = take(prefix_k, 0);
  problem.prefix_v = take(prefix_v, 0);
  problem.mask = take(mask, 0);
  problem.starts = take(starts, 3);
  problem.lengths = take(lengths, 3);
  problem.sinks = take(sinks, 2);
  problem.mask_kind = parameters.mask_kind;
  problem.causal = parameters.causal;
  problem.window_left = parameters.window_left;
  problem.window_right = parameters.window_right;
  problem.scale = parameters.scale;
  problem.softcap = parameters.softcap;
  problem.relaxed = parameters.relaxed;
  problem.saves_lse = true;
  return problem;
}

} // namespace tessl
