#pragma once

#include <metal_stdlib>

#include "kernels/common/attention_scores.h"
#include "kernels/common/vector_io.h"

// Whether runs of four columns that start at a multiple of four are contiguous and aligned in all operands.
constant bool attention_vector [[function_constant(8)]];

// The rows of one head of an operand: of queries, or of the prefix and the row's own keys together. Rows that do not
// exist, and columns past the end, are zeros and never read.
template <typename T>
struct AttentionRows {
  device const T* own;
  device const T* prefix;
  int64_t own_stride;
  int64_t own_column_stride;
  int64_t prefix_stride;
  int64_t prefix_column_stride;
  int prefix_rows;
  int first; // existing rows after the prefix
  int end;
  int columns;

  metal::vec<T, 4> load(int row, int column) const thread {
    const bool in_prefix = attention_has_prefix && row < prefix_rows;
    if (!in_prefix && (row < first || row >= end)) {
      return metal::vec<T, 4>(T(0.0f));
    }
    device const T* p = in_prefix ? prefix + row * prefix_stride : own + (row - prefix_rows) * own_stride;
    const int64_t stride = in_prefix ? prefix_column_stride : own_column_stride;
    const int count = columns - column;
    return attention_vector && count >= 4 ? load4(p + column) : load4(p + column * stride, stride, count);
  }

  // As fill_cooperative reads a matrix.
  float4 load_four(int row, int column) const thread {
    return to_float4<T>(load(row, column));
  }

  T load_one(int row, int column) const thread {
    const bool in_prefix = attention_has_prefix && row < prefix_rows;
    if ((!in_prefix && (row < first || row >= end)) || column >= columns) {
      return T(0.0f);
    }
    return in_prefix ? prefix[row * prefix_stride + column * prefix_column_stride]
                     : own[(row - prefix_rows) * own_stride + column * own_column_stride];
  }
};

template <typename T>
inline AttentionRows<T> query_rows(
    device const T* data, constant AttentionStrides& strides, uint row, uint head, int queries, int columns
) {
  AttentionRows<T> rows;
  rows.own = attention_has_pairs ? data + (row * strides.batch + head * strides.head) : data;
  rows.prefix = rows.own;
  rows.own_stride = strides.row;
  rows.own_column_stride = strides.column;
  rows.prefix_stride = 0;
  rows.prefix_column_stride = 0;
  rows.prefix_rows = 0;
  rows.first = 0;
  rows.end = queries;
  rows.columns = columns;
  return rows;
}

template <typename T>
inline AttentionRows<T> key_rows(
    device const T* own,
    device const T* prefix,
    constant AttentionStrides& own_strides,
    constant AttentionStrides& prefix_strides,
    uint row,
    uint kv_head,
    thread const AttentionKeys& keys,
    int columns
) {
  AttentionRows<T> rows;
  if (attention_has_own) {
    rows.own = own + (row * own_strides.batch + kv_head * own_strides.head);
  }
  if (attention_has_prefix) {
    rows.prefix = prefix + kv_head * prefix_strides.head;
  }
  rows.own_stride = own_strides.row;
  rows.own_column_stride = own_strides.column;
  rows.prefix_stride = prefix_strides.row;
  rows.prefix_column_stride = prefix_strides.column;
  rows.prefix_rows = keys.prefix;
  rows.first = keys.first_own;
  rows.end = keys.end_own;
  rows.columns = columns;
  return rows;
}

template <typename T>
inline bool is_number(T x) {
  return metal::fabs(float(x)) <= largest_float;
}
