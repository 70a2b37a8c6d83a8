#pragma once

#include <metal_stdlib>

#include "kernels/args/matmul.h"
#include "kernels/common/activation.h"
#include "kernels/common/batch.h"
#include "kernels/common/vector_io.h"

// What becomes of the sum over k, in float32 with one rounding at the store:
//   out[m, n] = activation(alpha sum[m, n] + beta c[m, n] + bias[m, n]) + residual[m, n]
//
// Function constants of the matmul families. `vector_x` promises that each run of four columns that starts at a
// multiple of four lies in x contiguously and on a boundary of four elements.
constant bool matmul_has_c [[function_constant(0)]];
constant bool matmul_has_bias [[function_constant(1)]];
constant bool matmul_has_residual [[function_constant(2)]];
constant bool matmul_has_batch [[function_constant(3)]];
constant int matmul_activation [[function_constant(4)]]; // a MatmulActivation
constant bool matmul_has_k [[function_constant(5)]];     // K > 0; otherwise a and b are not bound
constant bool matmul_vector_out [[function_constant(6)]];
constant bool matmul_vector_c [[function_constant(7)]];
constant bool matmul_vector_bias [[function_constant(8)]];
constant bool matmul_vector_residual [[function_constant(9)]];

// The addends of one member of the batch; those without their function constant are not set.
template <typename T>
struct MatmulAddends {
  device const T* c;
  device const T* bias;
  device const T* residual;
};

inline int64_t matmul_batch_offset(uint batch, constant MatmulArgs& args, constant int64_t* strides) {
  return matmul_has_batch ? batch_offset(batch, args.batch_ndim, args.batch_shape, strides) : 0;
}

template <typename T>
inline MatmulAddends<T> matmul_addends(
    device const T* c, device const T* bias, device const T* residual, constant MatmulArgs& args, uint batch
) {
  MatmulAddends<T> addends;
  if (matmul_has_c) {
    addends.c = c + matmul_batch_offset(batch, args, args.c.batch_strides);
  }
  if (matmul_has_bias) {
    addends.bias = bias + matmul_batch_offset(batch, args, args.bias.batch_strides);
  }
  if (matmul_has_residual) {
    addends.residual = residual + matmul_batch_offset(batch, args, args.residual.batch_strides);
  }
  return addends;
}

// The matrix of the output, or of the partial sums, that z of the grid stands for.
template <typename T>
inline device T* matmul_matrix_of(device T* out, uint z, constant MatmulArgs& args) {
  return out + int64_t(z) * args.M * args.N;
}

inline float matmul_activate(float x) {
  switch (matmul_activation) {
    case MATMUL_ACTIVATION_RELU:
      return relu(x);
    case MATMUL_ACTIVATION_SILU:
      return silu(x);
    case MATMUL_ACTIVATION_GELU:
      return gelu(x);
    case MATMUL_ACTIVATION_GELU_TANH:
      return gelu_tanh(x);
    default:
      return x;
  }
}

inline float4 matmul_activate(float4 x) {
  return float4(matmul_activate(x[0]), matmul_activate(x[1]), matmul_activate(x[2]), matmul_activate(x[3]));
}

// V is float or float4.
template <typename V>
inline V matmul_finish(constant MatmulArgs& args, V sum, V c, V bias, V residual) {
  V x = args.alpha * sum;
  if (matmul_has_c) {
    x += args.beta * c;
  }
  if (matmul_has_bias) {
    x += bias;
  }
  x = matmul_activate(x);
  if (matmul_has_residual) {
    x += residual;
  }
  return x;
}

template <typename T>
inline device const T* matmul_addend_at(device const T* data, constant MatmulAddend& addend, int row, int column) {
  return data + (row * addend.row_stride + column * addend.col_stride);
}

template <typename T>
inline float4 matmul_load_addend(
    device const T* data, constant MatmulAddend& addend, bool vector, int row, int column, int count
) {
  device const T* p = matmul_addend_at(data, addend, row, column);
  return to_float4<T>(vector && count >= 4 ? load4(p) : load4(p, addend.col_stride, count));
}

// Finishes the sums of the columns [column, column + min(count, 4)) of one row; column is a multiple of 4.
template <typename T>
inline void matmul_store4(
    device T* out,
    constant MatmulArgs& args,
    thread const MatmulAddends<T>& addends,
    float4 sum,
    int row,
    int column,
    int count
) {
  float4 c(0.0f);
  float4 bias(0.0f);
  float4 residual(0.0f);
  if (matmul_has_c) {
    c = matmul_load_addend(addends.c, args.c, matmul_vector_c, row, column, count);
  }
  if (matmul_has_bias) {
    bias = matmul_load_addend(addends.bias, args.bias, matmul_vector_bias, row, column, count);
  }
  if (matmul_has_residual) {
    residual = matmul_load_addend(addends.residual, args.residual, matmul_vector_residual, row, column, count);
  }
  const metal::vec<T, 4> values = from_float4<T>(matmul_finish(args, sum, c, bias, residual));
  device T* p = out + (int64_t(row) * args.N + column);
  if (matmul_vector_out && count >= 4) {
    store4(p, values);
  } else {
    store4(p, values, count);
  }
}

// Finishes the sum of one element.
template <typename T>
inline void matmul_store1(
    device T* out, constant MatmulArgs& args, thread const MatmulAddends<T>& addends, float sum, int row, int column
) {
  float c = 0.0f;
  float bias = 0.0f;
  float residual = 0.0f;
  if (matmul_has_c) {
    c = float(*matmul_addend_at(addends.c, args.c, row, column));
  }
  if (matmul_has_bias) {
    bias = float(*matmul_addend_at(addends.bias, args.bias, row, column));
  }
  if (matmul_has_residual) {
    residual = float(*matmul_addend_at(addends.residual, args.residual, row, column));
  }
  out[int64_t(row) * args.N + column] = T(matmul_finish(args, sum, c, bias, residual));
}
