#pragma once

#include <optional>

#include <mlx/array.h>
#include <mlx/utils.h>

namespace mx = mlx::core;

namespace tessl {

// The first index of the greatest number of each row of softcap tanh(logits / softcap), uint32; 0 where there is none.
mx::array argmax(const mx::array& logits, std::optional<float> softcap, mx::StreamOrDevice stream);

// argmax of z + noise, z = softcap tanh(logits / softcap) / temperature, among the top_k greatest z and, of those, the
// fewest that have top_p of the probability softmax(z). With float32 Gumbel noise of the shape of logits it is drawn
// from that distribution. Temperature 0 is argmax, whatever the noise.
mx::array sample(
    const mx::array& logits,
    const mx::array& noise,
    float temperature,
    std::optional<int> top_k,
    std::optional<float> top_p,
    std::optional<float> softcap,
    mx::StreamOrDevice stream
);

} // namespace tessl
