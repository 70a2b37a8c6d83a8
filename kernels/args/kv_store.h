#pragma once

#include "kernels/args/rows.h"

// Rows of new values, [..., T, D], for a cache of `cache_rows` rows in place of T. A position is an int32 for each row.
struct KvStoreArgs {
  RowsArgs rows;
  RowSourceArgs x;
  RowSourceArgs positions;
  int32_t T;
  int32_t cache_rows;
};

static_assert(sizeof(KvStoreArgs) == 200, "host and shader must agree on KvStoreArgs");
