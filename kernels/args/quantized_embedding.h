#pragma once

// Included by the host (C++20) and by the shaders.

// out[i, :] = row ids[i] of packed weights with V rows of D values, zeros where there is no such row.
struct QuantizedEmbeddingArgs {
  int32_t V;
  int32_t D;
  int64_t ld_words;  // 32-bit words between rows
  int64_t ld_scales; // elements between rows
  int64_t ld_biases;
};

static_assert(sizeof(QuantizedEmbeddingArgs) == 32, "host and shader must agree on QuantizedEmbeddingArgs");
