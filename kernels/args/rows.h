#pragma once

// Included by the host (C++20) and by the shaders.

#define ROWS_MAX_DIMS 8

// Rows of `columns` elements; `shape` is that of the dimensions before the last.
struct RowsArgs {
  int32_t columns;
  int32_t ndim;
  int64_t count; // of rows
  int32_t shape[ROWS_MAX_DIMS];
};

// Where the rows of one operand are; strides in elements, 0 where it is broadcast.
struct RowSourceArgs {
  int64_t column_stride;
  int64_t strides[ROWS_MAX_DIMS];
};

static_assert(sizeof(RowsArgs) == 48, "host and shader must agree on RowsArgs");
static_assert(sizeof(RowSourceArgs) == 72, "host and shader must agree on RowSourceArgs");
