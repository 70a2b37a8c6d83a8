#pragma once

#include "backends/cpu/rows.h"

namespace tessl::cpu {

// Rows of elements of any kind, `itemsize` bytes each.
struct RawRows {
  const char* data = nullptr;
  RowSource source;
};

// As kernels/kv_store.metal has it. Without `cache.data` the output is the cache already.
struct KvStore {
  int64_t itemsize;
  Rows cache_rows;
  RawRows cache;
  Rows rows;
  RawRows x;
  const int32_t* positions_data;
  RowSource positions;
  int64_t T, S;
  char* out;
};

void kv_store(const KvStore& store);

} // namespace tessl::cpu
