#pragma once

#include <cstdint>
#include <string>

#include "backends/cpu/dense_matrix.h"

namespace tessl::cpu {

using BlasOperand = DenseMatrix<float>;

// c = a b, or c += a b: a [M, K], b [K, N], c [M, N]. On the calling thread alone, and no operand is skipped: 0 times
// NaN is NaN. Dimensions and leading dimensions are at most max_blas_dimension. Throws std::runtime_error, in one
// sentence, when there is no BLAS library.
void sgemm(
    int64_t M,
    int64_t N,
    int64_t K,
    BlasOperand a,
    BlasOperand b,
    float* c,
    int64_t leading_dimension_c,
    bool accumulate
);

constexpr int64_t max_blas_dimension = INT32_MAX;

// Where the OpenBLAS of scipy-openblas32 is; it is opened at the first product. Without effect on macOS.
void set_blas_library(std::string path);

// Throws std::runtime_error, in one sentence, when there is no BLAS library.
void open_blas_library();

// The library and what it says of itself, for diagnosis: "OpenBLAS 0.3.30 ... Haswell". Opens it.
std::string blas_description();

} // namespace tessl::cpu
