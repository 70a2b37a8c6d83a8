#pragma once

#include <optional>
#include <vector>

#include <mlx/array.h>

#include "backends/cpu/attention.h"
#include "ops/attention_problem.h"

namespace mx = mlx::core;

namespace tessl {

// What the primitives of attention are built with: all of a problem that is not in its arrays, and which of the
// optional arrays there are.
struct AttentionParameters {
  float scale = 1.0f;
  float softcap = 0.0f; // 0 is none
  AttentionMask mask_kind = AttentionMask::none;
  bool causal = false;
  int window_left = -1; // negative is without limit
  int window_right = -1;
  bool relaxed = false;
  bool prefix = false;
  bool starts = false;
  bool lengths = false;
  bool sinks = false;

  bool operator==(const AttentionParameters&) const = default;
};

// The arrays of a problem by name. In a primitive's inputs they stand in this order.
struct AttentionInputs {
  mx::array q, k, v;
  std::optional<mx::array> prefix_k{}, prefix_v{}; // [kv_heads, P, D], [kv_heads, P, Dv]
  std::optional<mx::array> mask{};                 // broadcasts to [B, heads, Tq, P + Tk]
  std::optional<mx::array> starts{}, lengths{};    // [B] int32
  std::optional<mx::array> sinks{};                // [heads] float32

  // The first inputs; others may follow.
  static AttentionInputs from(const std::vector<mx::array>& inputs, const AttentionParameters& parameters);

  std::vector<mx::array> list() const;

  mx::Shape output_shape() const; // [B, heads, Tq, Dv]
  mx::Shape ends_shape() const;   // [B, heads, Tq, 2]
};

// `x`, whose dimensions are the last of an operand's four but for `trailing`, as input `input` of a primitive.
AttentionOperand attention_operand(const mx::array& x, uint8_t input, int trailing = 0);

AttentionProblem make_attention_problem(const AttentionInputs& inputs, const AttentionParameters& parameters);

// Elements of an operand, as the CPU code reads them.
cpu::HeadsView heads_view(const std::vector<mx::array>& inputs, const std::optional<AttentionOperand>& operand);

// A problem as the CPU code takes it, without its outputs.
cpu::Attention make_cpu_attention(const AttentionProblem& problem, const std::vector<mx::array>& inputs);

} // namespace tessl
