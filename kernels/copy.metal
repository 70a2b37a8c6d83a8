// out = a strided view, row-contiguous, for elements of 1, 2, 4 or 8 bytes.
//
//   each thread: four elements of the last dimension, one row, one member of the outer dimensions
//     out[outer, row, 4x : 4x + 4] = source[outer . strides + row . strides[-2] + 4x . strides[-1] ...]
//
// The last two dimensions are the grid's x and y, so that only the outer ones cost divisions, the same for all
// threads of a threadgroup.

#include <metal_stdlib>

#include "kernels/args/copy.h"
#include "kernels/common/batch.h"
#include "kernels/common/instantiate.h"
#include "kernels/common/vector_io.h"

using namespace metal;

// The last dimension is a multiple of four.
constant bool copy_vector_out [[function_constant(0)]];
// It is, and the source is contiguous in it and on boundaries of four elements in all others.
constant bool copy_vector_source [[function_constant(1)]];

template <typename T>
[[kernel]] void copy_strided(
    device const T* source [[buffer(0)]],
    device T* out [[buffer(1)]],
    constant CopyArgs& args [[buffer(2)]],
    uint3 position [[thread_position_in_grid]]
) {
  const int columns = args.shape[args.ndim - 1];
  const int rows = args.shape[args.ndim - 2];
  const int64_t column = int64_t(position.x) * 4;
  const int64_t row = position.y;
  if (column >= columns || row >= rows) {
    return;
  }
  const int count = int(columns - column);
  const int64_t stride = args.strides[args.ndim - 1];
  device const T* p = source + (batch_offset(position.z, args.ndim - 2, args.shape, args.strides) +
                                row * args.strides[args.ndim - 2] + column * stride);
  device T* q = out + ((position.z * int64_t(rows) + row) * columns + column);
  if (copy_vector_out) {
    store4(q, copy_vector_source ? load4(p) : load4(p, stride, 4));
  } else {
    store4(q, load4(p, stride, count), count);
  }
}

// clang-format off
instantiate_kernel("copy_strided_uint8", copy_strided, uchar)
instantiate_kernel("copy_strided_uint16", copy_strided, ushort)
instantiate_kernel("copy_strided_uint32", copy_strided, uint)
instantiate_kernel("copy_strided_uint64", copy_strided, ulong)
