#pragma once

#include <metal_stdlib>

#include "kernels/args/int8_matmul.h"
#include "kernels/common/matmul_epilogue.h"

// What becomes of the exact sums of int8_matmul. Of the constants of matmul_epilogue.h it uses those of bias, batch,
// activation, K and the output's alignment.
constant bool int8_has_scale_a [[function_constant(12)]];
constant bool int8_has_scale_b [[function_constant(13)]];

// The exact sum, or what became of it, in the type of the output.
template <typename Out>
inline Out int8_round(int, float x) {
  return Out(x);
}

template <>
inline int int8_round<int>(int sum, float) {
  return sum;
}

template <typename Out>
struct Int8Sink {
  using Quad = int4;

  device Out* out;
  constant Int8MatmulArgs* args;
  device const float* scale_a;
  device const float* scale_b;
  device const float* bias;
  int m0;
  int n0;

  Out finish(int sum, int row, int column) const {
    float x = float(sum);
    if (int8_has_scale_a) {
      x *= *matmul_addend_at(scale_a, args->scale_a, row, column);
    }
    if (int8_has_scale_b) {
      x *= *matmul_addend_at(scale_b, args->scale_b, row, column);
    }
    if (matmul_has_bias) {
      x += *matmul_addend_at(bias, args->product.bias, row, column);
    }
    return int8_round<Out>(sum, matmul_activate(x));
  }

  // Four columns of a row, the first a multiple of four; those past the edge are dropped.
  void store4(int4 sum, int row, int column) const {
    const int m = m0 + row;
    const int n = n0 + column;
    const int count = args->product.N - n;
    metal::vec<Out, 4> values(Out(0.0f));
    for (int i = 0; i < metal::min(count, 4); ++i) {
      values[i] = finish(sum[i], m, n + i);
    }
    device Out* p = out + (int64_t(m) * args->product.N + n);
    if (matmul_vector_out && count >= 4) {
      ::store4(p, values);
    } else {
      ::store4(p, values, count);
    }
  }

  void store1(int sum, int row, int column) const {
    out[int64_t(m0 + row) * args->product.N + (n0 + column)] = finish(sum, m0 + row, n0 + column);
  }
};

template <typename Out>
inline Int8Sink<Out> int8_sink(
    device Out* out,
    constant Int8MatmulArgs& args,
    device const float* scale_a,
    device const float* scale_b,
    device const float* bias,
    uint batch,
    int m0,
    int n0
) {
  Int8Sink<Out> sink;
  sink.out = matmul_matrix_of(out, batch, args.product);
  sink.args = &args;
  if (int8_has_scale_a) {
    sink.scale_a = scale_a + matmul_batch_offset(batch, args.product, args.scale_a.batch_strides);
  }
  if (int8_has_scale_b) {
    sink.scale_b = scale_b + matmul_batch_offset(batch, args.product, args.scale_b.batch_strides);
  }
  if (matmul_has_bias) {
    sink.bias = bias + matmul_batch_offset(batch, args.product, args.product.bias.batch_strides);
  }
  sink.m0 = m0;
  sink.n0 = n0;
  return sink;
}
