#pragma once

#include <span>

#include "backends/cpu/matmul.h"

namespace tessl::cpu {

// Whether oneDNN computes a product: one of bfloat16 that is large enough to be worth packing its operands (see
// is_tiled), where it is used for such at all. No other opens it. An op asks before its task does: see onednn_use.
bool goes_through_onednn(const Matmul& product);

// Computes such products: each thread has oneDNN make the float32 sums of a block, and passes over them with the
// epilogue while they are in cache. False when oneDNN failed; `out` then holds nothing.
bool onednn_matmul(std::span<const Matmul> products);

} // namespace tessl::cpu
