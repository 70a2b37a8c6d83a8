#pragma once

#include <metal_stdlib>

// The tokens [x, y) of a row of the batch, clipped to 0..T.
constant bool range_has_starts [[function_constant(0)]];
constant bool range_has_lengths [[function_constant(1)]];

inline int2 token_range(
    device const int* starts, int64_t starts_stride, device const int* lengths, int64_t lengths_stride, uint row, int T
) {
  int2 range(0, T);
  if (range_has_lengths) {
    range.y = metal::clamp(lengths[row * lengths_stride], 0, T);
  }
  if (range_has_starts) {
    range.x = metal::clamp(starts[row * starts_stride], 0, range.y);
  }
  return range;
}
