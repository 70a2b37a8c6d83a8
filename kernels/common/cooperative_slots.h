#pragma once

#include <metal_stdlib>

// Cooperative tensors by their slots. No layout is assumed: slots say where they are.

// Whether slots i to i + 3 are four neighbours in a row that start at a multiple of four.
template <typename Tensor>
inline bool is_run_of_four(thread Tensor& acc, ushort i) {
  const auto first = acc.get_multidimensional_index(i);
  bool run = i + 4 <= int(acc.get_capacity()) && first[0] % 4 == 0 && acc.is_valid_element(i);
#pragma clang loop unroll(full)
  for (int j = 1; j < 4; ++j) {
    if (run) {
      const auto next = acc.get_multidimensional_index(i + j);
      run = acc.is_valid_element(i + j) && next[0] == first[0] + j && next[1] == first[1];
    }
  }
  return run;
}

// Fills a cooperative tensor from a matrix whose rows run along dimension 0, first element (row, column): load_four
// gives four neighbours of a row, zeros past its end, load_one a single element.
template <typename T, typename Tensor, typename Matrix>
inline void fill_cooperative(thread Tensor& tensor, thread const Matrix& matrix, int row, int column) {
#pragma clang loop unroll(full)
  for (ushort i = 0; i < tensor.get_capacity(); i += 4) {
    if (is_run_of_four(tensor, i)) {
      const auto at = tensor.get_multidimensional_index(i);
      const float4 values = matrix.load_four(row + at[1], column + at[0]);
#pragma clang loop unroll(full)
      for (ushort j = 0; j < 4; ++j) {
        tensor[i + j] = T(values[j]);
      }
      continue;
    }
#pragma clang loop unroll(full)
    for (ushort j = i; j < i + 4; ++j) {
      if (j < tensor.get_capacity() && tensor.is_valid_element(j)) {
        const auto at = tensor.get_multidimensional_index(j);
        tensor[j] = T(matrix.load_one(row + at[1], column + at[0]));
      }
    }
  }
}

// Of a 16 x 32 destination on one simdgroup a thread has 16 slots, as MLX's kernels rely on.
constant constexpr ushort cooperative_slots = 16;

// Sums of several products live in plain registers, and pass through one cooperative tensor: the compiler folds the
// copies, and nothing is asked of a cooperative tensor but what its getter gives.
template <typename Tensor>
inline void set_slots(thread Tensor& tensor, thread const float (&values)[cooperative_slots]) {
#pragma clang loop unroll(full)
  for (ushort j = 0; j < cooperative_slots; ++j) {
    tensor[j] = values[j];
  }
}
