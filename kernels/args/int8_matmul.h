#pragma once

#include "kernels/args/matmul.h"

// sum[m, n] = sum_k a[m, k] b[k, n] of int8, exact in int32; out is sum, or
// activation(sum[m, n] scale_a[m] scale_b[n] + bias[n]) in float32, rounded once.
struct Int8MatmulArgs {
  MatmulArgs product; // its alpha, beta, c and residual mean nothing here
  MatmulAddend scale_a;
  MatmulAddend scale_b;
};

static_assert(sizeof(Int8MatmulArgs) == 616, "host and shader must agree on Int8MatmulArgs");
