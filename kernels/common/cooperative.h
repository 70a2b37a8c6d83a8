#pragma once

// clang-format off: the types first that MPP builds on
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
// clang-format on

#include "kernels/common/cooperative_slots.h"

// What products by matmul2d share: views of matrices, and the way of a cooperative tensor to device memory.

// A view of at most `rows` x `columns` elements, rows `stride` apart. matmul2d takes no pointer to const.
template <typename T>
using MatmulView = metal::tensor<device T, metal::dextents<int, 2>, metal::tensor_inline>;

template <typename T>
inline MatmulView<T> matmul_view(device T* origin, int rows, int columns, int64_t stride) {
  return MatmulView<T>(origin, metal::dextents<int, 2>(columns, rows), metal::array<int, 2>{1, int(stride)});
}

// Hands what acc holds of the rows and columns that are left to `sink`: by store4, four neighbours in a row, or store1.
template <typename Sink, typename Tensor>
inline void store_slots(thread const Sink& sink, thread Tensor& acc, int m_left, int n_left) {
#pragma clang loop unroll(full)
  for (ushort i = 0; i < acc.get_capacity(); i += 4) {
    if (is_run_of_four(acc, i)) {
      const auto at = acc.get_multidimensional_index(i);
      if (at[1] < m_left && at[0] < n_left) {
        const typename Sink::Quad sum(acc[i], acc[i + 1], acc[i + 2], acc[i + 3]);
        sink.store4(sum, at[1], at[0]);
      }
      continue;
    }
#pragma clang loop unroll(full)
    for (ushort j = i; j < i + 4; ++j) {
      if (j < acc.get_capacity() && acc.is_valid_element(j)) {
        const auto at = acc.get_multidimensional_index(j);
        if (at[1] < m_left && at[0] < n_left) {
          sink.store1(acc[j], at[1], at[0]);
        }
      }
    }
  }
}
