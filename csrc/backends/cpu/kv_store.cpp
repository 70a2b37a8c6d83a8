#include "backends/cpu/kv_store.h"

#include <cstring>

namespace tessl::cpu {
namespace {

void copy_row(char* target, const Rows& rows, const RawRows& x, int64_t row, int64_t itemsize) {
  const char* source = x.data + x.source.offset_of(row, rows.shape) * itemsize;
  if (x.source.column_stride == 1) {
    std::memcpy(target, source, static_cast<size_t>(rows.columns * itemsize));
    return;
  }
  for (int64_t column = 0; column < rows.columns; ++column) {
    std::memcpy(
        target + column * itemsize, source + column * x.source.column_stride * itemsize, static_cast<size_t>(itemsize)
    );
  }
}

} // namespace

void kv_store(const KvStore& work) {
  const int64_t row_bytes = work.rows.columns * work.itemsize;
  if (work.cache.data != nullptr) {
    for_ranges(work.cache_rows.count(), work.rows.columns, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        copy_row(work.out + row * row_bytes, work.cache_rows, work.cache, row, work.itemsize);
      }
    });
  }
  for_ranges(work.rows.count(), work.rows.columns, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const int64_t start = work.positions_data[work.positions.offset_of(row, work.rows.shape)];
      const int64_t t = (start + row % work.T) % work.S;
      const int64_t out_row = row / work.T * work.S + (t < 0 ? t + work.S : t);
      copy_row(work.out + out_row * row_bytes, work.rows, work.x, row, work.itemsize);
    }
  });
}

} // namespace tessl::cpu
