#pragma once

#include <optional>
#include <vector>

#include "ops/attention_inputs.h"

namespace tessl {

struct FoldedAttention {
  std::vector<mx::array> inputs;
  int members; // of the map
};

// The inputs of a primitive of attention under vmap, the mapped axes (>= 0) folded into the batch; nothing where an
// array without a batch is mapped, as the prefix is. Inputs after those of attention have a batch first.
std::optional<FoldedAttention> fold_into_batch(
    const std::vector<mx::array>& inputs,
    const std::vector<int>& axes,
    const AttentionParameters& parameters,
    mx::Stream stream
);

// The outputs of the folded primitive with the map's axis first.
std::vector<mx::array> unfold_batch(const std::vector<mx::array>& outputs, int members, mx::Stream stream);

} // namespace tessl
