#pragma once

#include <array>
#include <cstdint>

#include "backends/cpu/element.h"

namespace tessl::cpu {

// Element (batch, head, row, column) is at the sum of index times stride; strides in elements, 0 where all share.
struct HeadsView {
  const void* data = nullptr;
  std::array<int64_t, 4> strides{};

  explicit operator bool() const {
    return data != nullptr;
  }
};

// A number for each row of the batch.
struct BoundsView {
  const int32_t* data = nullptr;
  int64_t stride = 0;

  explicit operator bool() const {
    return data != nullptr;
  }
};

// See ops/attention_problem.h for what is computed. q [B, heads, Tq, D], k [B, kv_heads, Tk, D],
// v [B, kv_heads, Tk, Dv], the prefix alike with P rows, mask [B, heads, Tq, P + Tk] and out [B, heads, Tq, Dv] are of
// `element`, a boolean mask of bytes; out and ends [B, heads, Tq, 2] are row-contiguous. All arithmetic is float32.
// Keys that padding or position hide are not read.
struct Attention {
  Element element = Element::float32;
  int64_t B = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t Tq = 0;
  int64_t Tk = 0;
  int64_t P = 0;
  int64_t D = 0;
  int64_t Dv = 0;
  HeadsView q, k, v, prefix_k, prefix_v, mask;
  bool boolean_mask = false;
  BoundsView starts, lengths;
  const float* sinks = nullptr;
  int64_t sinks_stride = 0;
  bool causal = false;
  int64_t window_left = -1; // negative is without limit
  int64_t window_right = -1;
  float scale = 1.0f;
  float softcap = 0.0f; // 0 is none
  void* out = nullptr;
  float* ends = nullptr; // null is not wanted
};

void attention(const Attention& problem);

} // namespace tessl::cpu
