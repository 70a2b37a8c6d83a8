// Writes new keys or values into a cache, a ring of `cache_rows` rows:
//
//   out[..., (position + t) mod cache_rows, :] = x[..., t, :]
//
//   each thread: four columns of one row
//
// Elements of 1, 2, 4 or 8 bytes, moved as they are. The rows of the cache that are not written stay.

#include <metal_stdlib>

#include "kernels/args/kv_store.h"
#include "kernels/common/batch.h"
#include "kernels/common/instantiate.h"
#include "kernels/common/vector_io.h"

using namespace metal;

constant bool kv_vector_x [[function_constant(0)]];
constant bool kv_vector_out [[function_constant(1)]];

template <typename T>
[[kernel]] void kv_store(
    device const T* x [[buffer(0)]],
    device const int* positions [[buffer(1)]],
    device T* out [[buffer(2)]],
    constant KvStoreArgs& args [[buffer(3)]],
    uint3 position [[thread_position_in_grid]]
) {
  const int columns = args.rows.columns;
  const int64_t row = position.y;
  const int64_t column = int64_t(position.x) * 4;
  if (column >= columns || row >= args.rows.count) {
    return;
  }
  const int count = int(columns - column);
  const int start = positions[batch_offset(uint(row), args.rows.ndim, args.rows.shape, args.positions.strides)];
  const int t = int((int64_t(start) + row % args.T) % args.cache_rows);
  const int64_t out_row = row / args.T * args.cache_rows + (t < 0 ? t + args.cache_rows : t);
  device const T* source =
      x + (batch_offset(uint(row), args.rows.ndim, args.rows.shape, args.x.strides) + column * args.x.column_stride);
  device T* target = out + (out_row * columns + column);
  const vec<T, 4> values = kv_vector_x && count >= 4 ? load4(source) : load4(source, args.x.column_stride, count);
  if (kv_vector_out && count >= 4) {
    store4(target, values);
  } else {
    store4(target, values, count);
  }
}

// clang-format off
instantiate_kernel("kv_store_uint8", kv_store, uchar)
instantiate_kernel("kv_store_uint16", kv_store, ushort)
instantiate_kernel("kv_store_uint32", kv_store, uint)
instantiate_kernel("kv_store_uint64", kv_store, ulong)
