#pragma once

#include <array>
#include <cstdint>

#include "backends/cpu/element.h"

namespace tessl::cpu {

// Element (batch, head, row, column) is at the sum of index times stride; strides in elements.
struct HeadsView {
  const void* data = nullptr;
  std::array<int64_t, 4> strides{};
};

// out = softmax(scale q k^T) v, every row of the batch over its first `lengths` keys: q [B, heads, Tq, D],
// k [B, kv_heads, Tk, D], v [B, kv_heads, Tk, Dv], out [B, heads, Tq, Dv] row-contiguous; kv_heads divides heads.
// Pointers are to elements of `element`; all arithmetic is float32. Keys past a length are not read; no key gives
// zeros.
struct Attention {
  Element element;
  int64_t B, heads, kv_heads, Tq, Tk, D, Dv;
  HeadsView q, k, v;
  const int32_t* lengths; // [B], any value; null is Tk for all
  int64_t lengths_stride;
  float scale;
  void* out;
};

void attention(const Attention& problem);

} // namespace tessl::cpu
