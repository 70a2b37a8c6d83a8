#pragma once

// Rows of fewer tokens go token by token.
#define GATED_DELTA_FEW_TOKENS 16

// Tokens of a chunk, and the floats that its preparation leaves for the scan: two matrices and six vectors.
#define GATED_DELTA_CHUNK 64
#define GATED_DELTA_PREPARED (2 * GATED_DELTA_CHUNK * GATED_DELTA_CHUNK + 6 * GATED_DELTA_CHUNK)

// Strides are in elements, of batch, token, head and column; 0 where an operand is broadcast.
struct GatedDeltaArgs {
  int32_t T;
  int32_t Hk;
  int32_t Hv;
  int32_t Dk;
  int32_t Dv;
  int32_t chunks; // of a row of T tokens
  int64_t q_strides[4];
  int64_t k_strides[4];
  int64_t v_strides[4];
  int64_t g_strides[4]; // of g or a
  int64_t beta_strides[4];
  int64_t state_strides[4]; // of batch, head, row and column
  int64_t A_log_stride;
  int64_t dt_bias_stride;
  int64_t starts_stride;
  int64_t lengths_stride;
};

static_assert(sizeof(GatedDeltaArgs) == 248, "host and shader must agree on GatedDeltaArgs");

struct GatedDeltaGradArgs {
  GatedDeltaArgs forward;
  int64_t dy_strides[4];
  int64_t dfinal_strides[4]; // of batch, head, row and column
};

static_assert(sizeof(GatedDeltaGradArgs) == 312, "host and shader must agree on GatedDeltaGradArgs");

struct CausalConv1dArgs {
  int32_t T;
  int32_t C;
  int32_t K;
  int32_t padding;
  int64_t x_strides[3]; // of batch, token and channel
  int64_t weight_strides[2];
  int64_t state_strides[3];
  int64_t starts_stride;
  int64_t lengths_stride;
};

static_assert(sizeof(CausalConv1dArgs) == 96, "host and shader must agree on CausalConv1dArgs");

// Tokens whose products one thread sums for a gradient of the weights.
#define CAUSAL_CONV1D_BLOCK 256

struct CausalConv1dGradArgs {
  CausalConv1dArgs forward;
  int32_t B;
  int32_t blocks; // of a row of T tokens
  int64_t dy_strides[3];
  int64_t dlast_strides[3]; // of batch, row and channel
};

static_assert(sizeof(CausalConv1dGradArgs) == 152, "host and shader must agree on CausalConv1dGradArgs");
