#pragma once

#include <cstdint>
#include <string>

#include "backends/cpu/dense_matrix.h"

namespace tessl::cpu {

// Products by oneDNN, which computes them on the CPU's matrix units (AMX) or with its dot-product instructions. The
// library is optional: it is opened at run time where it is installed, and used for a type of operands where it is
// right and faster than our own kernels.

enum class OnednnType : uint8_t { int8, bfloat16 };

struct OnednnUse {
  bool used = false;
  std::string reason;
};

// Whether products of a type go through oneDNN, and why. Opens the library, and has it compute some small products. An
// op asks on the thread that evaluates it, before its task does: from a stream's thread the library could still be
// opening, and registering what it frees at exit, while the process exits.
const OnednnUse& onednn_use(OnednnType type);

// c = a b: a [M, K], b [K, N], c [M, N], M, N, K > 0. On the calling thread alone. False when the library failed, and c
// holds nothing. Only where onednn_use() says so.
bool onednn_product(
    int64_t M,
    int64_t N,
    int64_t K,
    DenseMatrix<int8_t> a,
    DenseMatrix<int8_t> b,
    int32_t* c,
    int64_t leading_dimension_c
);

// The same for bfloat16, as its bits, summed in float32. Operands and sums below 2^-126 count as zero.
bool onednn_product(
    int64_t M,
    int64_t N,
    int64_t K,
    DenseMatrix<uint16_t> a,
    DenseMatrix<uint16_t> b,
    float* c,
    int64_t leading_dimension_c
);

// Where the library of onednn-cpu-gomp is; it is opened at the first product that may use it.
void set_onednn_library(std::string path);

// Throws std::invalid_argument when MLX_TESSL_ONEDNN is set, and neither off, auto nor all.
void check_onednn_setting();

} // namespace tessl::cpu
