#pragma once

#include <vector>

#include "ops/attention_inputs.h"

namespace tessl {

// Which gradients a primitive gives. Those of k and v come together, as do those of the prefix.
struct AttentionWants {
  bool q = false;
  bool keys = false;
  bool prefix = false;
  bool mask = false; // additive
  bool sinks = false;

  bool operator==(const AttentionWants&) const = default;
};

// The gradients of an output of attention with the cotangent `dout`: for each input of its primitive that of `wants`,
// in the order of the inputs. `out` and `ends` are what that primitive gave.
std::vector<mx::array> attention_grad(
    const AttentionInputs& inputs,
    const AttentionParameters& parameters,
    const AttentionWants& wants,
    const mx::array& out,
    const mx::array& ends,
    const mx::array& dout,
    mx::Stream stream
);

// For each input of the primitive of attention, which of the gradients is its own, or -1 for one without.
std::vector<int> gradient_places(const AttentionParameters& parameters, const AttentionWants& wants);

} // namespace tessl
