#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include <mlx/array.h>
#include <mlx/utils.h>

namespace mx = mlx::core;

namespace tessl {

// How far a query sees before and after its own position, inclusive; one number is both, none is without limit.
using AttentionWindow = std::variant<int, std::pair<std::optional<int>, std::optional<int>>>;

struct AttentionOptions {
  std::optional<std::variant<std::string, mx::array>> mask; // "causal", or booleans or floats [B, Hq, Tq, P + Tk]
  std::optional<AttentionWindow> window;
  std::optional<mx::array> lengths, starts; // [B]
  std::optional<mx::array> sinks;           // [Hq]
  std::optional<float> softcap;
  std::optional<std::pair<mx::array, mx::array>> prefix; // [Hkv, P, D], [Hkv, P, Dv]
  std::optional<std::string> precision;
};

// softmax(softcap(scale q k^T) + mask) v for q [B, Hq, Tq, D], k [B, Hkv, Tk, D], v [B, Hkv, Tk, Dv]: see
// ops/attention_problem.h.
mx::array attention(
    const mx::array& q,
    const mx::array& k,
    const mx::array& v,
    float scale,
    const AttentionOptions& options,
    mx::StreamOrDevice stream
);

} // namespace tessl
