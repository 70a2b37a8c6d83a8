#pragma once

// Included by the host (C++20) and by the shaders.

#include "kernels/args/matmul.h"

// How packed weights mean numbers. `bits` bits a value, little-endian and without gaps along a row; `group` values
// share a scale.
enum QuantizationMode {
  QUANTIZATION_AFFINE = 0, // scale q + bias, q unsigned of 2, 3, 4, 5, 6 or 8 bits
  QUANTIZATION_MXFP4 = 1,  // e2m1, groups of 32 with an e8m0 scale
  QUANTIZATION_MXFP8 = 2,  // e4m3, groups of 32 with an e8m0 scale
  QUANTIZATION_NVFP4 = 3,  // e2m1, groups of 16 with an e4m3 scale
};

// MatmulArgs of a product whose b is packed: ldb and b_batch_strides count 32-bit words, c and residual are absent.
struct QuantizedMatmulArgs {
  MatmulArgs product;
  int64_t ld_scales; // elements between rows of scales
  int64_t ld_biases;
  int64_t scales_batch_strides[MATMUL_MAX_BATCH_DIMS];
  int64_t biases_batch_strides[MATMUL_MAX_BATCH_DIMS];
};

static_assert(sizeof(QuantizedMatmulArgs) == 600, "host and shader must agree on QuantizedMatmulArgs");
