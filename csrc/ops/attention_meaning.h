#pragma once

#include <mlx/array.h>
#include <mlx/stream.h>

#include "ops/attention_inputs.h"

namespace tessl {

// Attention in stock MLX ops, which builds all scores at once: what it is where no code of ours runs, and what its
// derivatives are derivatives of.
mx::array composed_attention(const AttentionInputs& inputs, const AttentionParameters& parameters, mx::Stream stream);

} // namespace tessl
