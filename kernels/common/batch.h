#pragma once

#include <metal_stdlib>

// Where member `index` of a row-major batch of this shape starts in an operand with these strides.
inline int64_t batch_offset(uint index, int ndim, constant int32_t* shape, constant int64_t* strides) {
  int64_t offset = 0;
  for (int d = ndim - 1; d >= 0; --d) {
    const uint size = uint(shape[d]);
    offset += int64_t(index % size) * strides[d];
    index /= size;
  }
  return offset;
}
