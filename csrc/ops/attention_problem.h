#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include <mlx/dtype.h>

namespace tessl {

// Where an operand stands in the primitive's inputs. Strides are in elements, of batch, head, row and column, and 0
// where the operand is broadcast or has no such dimension.
struct AttentionOperand {
  uint8_t input = 0;
  int64_t offset = 0; // bytes
  std::array<int64_t, 4> strides{};
};

enum class AttentionMask : uint8_t { none, boolean, additive };

// softmax(softcap(scale q k^T) + mask) v for q [B, heads, Tq, D], k [B, kv_heads, Tk, D], v [B, kv_heads, Tk, Dv].
//
// Query i of row b stands at position i + Tk - Tq among the row's own keys. Before these it sees the P keys of the
// prefix, at positions -P .. -1. A key at position j is visible to the query at position p when
//   j <= p                                     causal
//   p - window_left <= j <= p + window_right   each where it is not negative
//   j < 0 or starts[b] <= j < lengths[b]       own keys alone can be hidden so
//   mask[b, h, i, P + j]                       boolean; an additive mask hides a key by -infinity
// A sink adds exp(sinks[h]) to the denominator of the softmax. A query that sees no key yields zeros.
struct AttentionProblem {
  mlx::core::Dtype dtype = mlx::core::float32; // of q, k, v, the prefix and the output
  int32_t B = 0;
  int32_t heads = 0;
  int32_t kv_heads = 0; // divides heads
  int32_t Tq = 0;
  int32_t Tk = 0;
  int32_t P = 0;
  int32_t D = 0;
  int32_t Dv = 0;
  AttentionOperand q, k, v;
  std::optional<AttentionOperand> prefix_k, prefix_v; // [kv_heads, P, D], [kv_heads, P, Dv]
  std::optional<AttentionOperand> mask;               // [B, heads, Tq, P + Tk]; additive: of `dtype`
  std::optional<AttentionOperand> starts, lengths;    // [B] int32, any value
  std::optional<AttentionOperand> sinks;              // [heads] float32; its stride is the first
  AttentionMask mask_kind = AttentionMask::none;
  bool causal = false;
  int32_t window_left = -1;
  int32_t window_right = -1;
  float scale = 1.0f;
  float softcap = 0.0f; // softcap(s) = softcap tanh(s / softcap); 0 is none
  bool relaxed = false; // float32 operands may be truncated to tf32

  // A second output, [B, heads, Tq, 2] float32: the log-sum-exp of each query's scores as the greatest of them, m, in
  // units of log 2, and the sum l of 2^(score - m), sink included; (0, 0) for a query that sees no key. In one number
  // log l would be lost beside an m of the size that additive masks make.
  bool saves_ends = false;
};

// The gradients of attention by its operands, from what the forward primitive gave. `forward` tells where its operands
// stand among the inputs of the gradient, besides `out` [B, heads, Tq, Dv], `ends` [B, heads, Tq, 2] float32 and the
// cotangent `dout` [B, heads, Tq, Dv].
//
// A gradient that is not wanted has no place; dk and dv, dprefix_k and dprefix_v are wanted together or not at all.
struct AttentionGradProblem {
  AttentionProblem forward;
  AttentionOperand out, ends, dout;

  // Places among the outputs, all of which are row-contiguous and written in full.
  std::optional<uint8_t> dq;                   // [B, heads, Tq, D]
  std::optional<uint8_t> dk, dv;               // [B, kv_heads, Tk, D], [B, kv_heads, Tk, Dv]
  std::optional<uint8_t> dprefix_k, dprefix_v; // [kv_heads, P, D], [kv_heads, P, Dv]: summed over the rows
  std::optional<uint8_t> dmask;                // of an additive mask, of `dtype`: [mask_shape]
  std::optional<uint8_t> dsinks;               // [heads] float32

  // The mask as it was given: each dimension that of [B, heads, Tq, P + Tk], or 1, over which its gradient is summed.
  std::array<int32_t, 4> mask_shape{1, 1, 1, 1};
};

} // namespace tessl
