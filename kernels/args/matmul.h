#pragma once

// Included by the host (C++20) and by the shaders.

#define MATMUL_MAX_BATCH_DIMS 8

// A matrix, or a stack of them, that the epilogue adds; all strides in elements. A bias has row_stride 0.
struct MatmulAddend {
  int64_t row_stride;
  int64_t col_stride;
  int64_t batch_strides[MATMUL_MAX_BATCH_DIMS];
};

// out[m, n] = activation(alpha * sum_k a[m, k] b[k, n] + beta * c[m, n] + bias[n]) + residual[m, n]
// for every index of the batch; out is row-contiguous.
struct MatmulArgs {
  int32_t M;
  int32_t N;
  int32_t K;
  int32_t batch_ndim;
  int32_t tiles_m;
  int32_t tiles_n;
  int32_t walk_width; // of the grid walk: tile rows of a band or panel, 0 for plain row order
  float alpha;
  float beta;
  int32_t partition_k; // K of one partition of a split product; K itself when it is whole
  int64_t lda;         // elements between rows of a (M x K), or of its transpose (K x M) in TN
  int64_t ldb;         // elements between rows of b (K x N), or of its transpose (N x K) in NT
  int32_t batch_shape[MATMUL_MAX_BATCH_DIMS];
  int64_t a_batch_strides[MATMUL_MAX_BATCH_DIMS];
  int64_t b_batch_strides[MATMUL_MAX_BATCH_DIMS];
  MatmulAddend c;
  MatmulAddend bias;
  MatmulAddend residual;
};

static_assert(sizeof(MatmulArgs) == 456, "host and shader must agree on MatmulArgs");

// Values of [[function_constant(4)]].
enum MatmulActivation {
  MATMUL_ACTIVATION_NONE = 0,
  MATMUL_ACTIVATION_RELU = 1,
  MATMUL_ACTIVATION_SILU = 2,
  MATMUL_ACTIVATION_GELU = 3, // x Phi(x) by erf
  MATMUL_ACTIVATION_GELU_TANH = 4,
};
