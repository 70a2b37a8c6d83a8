#pragma once

#include <optional>
#include <vector>

#include <mlx/array.h>
#include <mlx/stream.h>

namespace mx = mlx::core;

namespace tessl {

// Which optional inputs the primitive has, and its parameters.
struct GatedDeltaForm {
  bool has_gates = false; // g and beta are a and b, and A_log and dt_bias are there
  bool has_state = false;
  bool has_starts = false;
  bool has_lengths = false;
  bool normalize_qk = false;
  bool relaxed = false; // operands of products may be truncated to tf32

  bool operator==(const GatedDeltaForm&) const = default;
};

// The primitive's inputs by name, in their order. With gates g and beta are a and b.
struct GatedDeltaInputs {
  mx::array q, k, v, g, beta;
  std::optional<mx::array> state, starts, lengths, A_log, dt_bias;

  static GatedDeltaInputs from(const std::vector<mx::array>& inputs, const GatedDeltaForm& form);
  std::vector<mx::array> list() const;
};

// x [B, T, ...] with zeros for the tokens outside of their row's range.
mx::array with_zeros_outside(const mx::array& x, const GatedDeltaInputs& inputs, mx::Stream s);

// g and beta in float32.
std::vector<mx::array> gates_in_stock_ops(
    const mx::array& a, const mx::array& b, const mx::array& A_log, const mx::array& dt_bias, mx::Stream s
);

// y and the last state in stock ops, by chunks: the twin of mlx_tessl/reference/gated_delta.py.
std::vector<mx::array> gated_delta_in_stock_ops(
    const std::vector<mx::array>& inputs, const GatedDeltaForm& form, mx::Stream s
);

} // namespace tessl
