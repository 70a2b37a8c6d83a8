#pragma once

#include <metal_stdlib>

#include "kernels/common/cooperative.h"
#include "kernels/common/matmul_epilogue.h"

// Where a tile of sums goes that matmul_epilogue.h finishes.
template <typename T>
struct MatmulSink {
  using Quad = float4;

  device T* out;
  constant MatmulArgs* args;
  MatmulAddends<T> addends;
  int m0;
  int n0;

  void store4(float4 sum, int row, int column) const {
    matmul_store4(out, *args, addends, sum, m0 + row, n0 + column, args->N - n0 - column);
  }

  void store1(float sum, int row, int column) const {
    matmul_store1(out, *args, addends, sum, m0 + row, n0 + column);
  }
};

// Finishes and stores acc, whose first element is (m0, n0) of the matrix; what lies past its edges is dropped.
template <typename T, typename Tensor>
inline void store_cooperative(
    device T* out, constant MatmulArgs& args, thread const MatmulAddends<T>& addends, thread Tensor& acc, int m0, int n0
) {
  const MatmulSink<T> sink = {out, &args, addends, m0, n0};
  store_slots(sink, acc, args.M - m0, args.N - n0);
}
