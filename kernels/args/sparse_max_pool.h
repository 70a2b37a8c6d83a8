#pragma once

// Included by the host (C++20) and by the shaders.

// out[row, word] pools f(hidden[row, token] . weight[word] + bias[word]) over the tokens of a row; out is
// row-contiguous. Strides in elements; the units of a token and of a word are contiguous.
struct SparseMaxPoolArgs {
  int32_t tokens;
  int32_t words;
  int32_t units;
  int32_t reserved;
  int64_t row_stride; // of hidden
  int64_t token_stride;
  int64_t word_stride; // of weight
  int64_t bias_stride;
  int64_t length_stride;
};

static_assert(sizeof(SparseMaxPoolArgs) == 56, "host and shader must agree on SparseMaxPoolArgs");

// Values of [[function_constant(24)]]: how often log(1 + x) is taken of relu(logit).
enum SparseActivation {
  SPARSE_ACTIVATION_LOG1P_RELU = 1,
  SPARSE_ACTIVATION_LOG1P_LOG1P_RELU = 2,
};
