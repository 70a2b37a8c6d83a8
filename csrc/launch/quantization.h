#pragma once

#include <cstdint>

#include "kernels/args/quantized_matmul.h"

namespace tessl {

// MLX's packing of a matrix along its rows.
struct Quantization {
  QuantizationMode mode = QUANTIZATION_AFFINE;
  int bits = 4;
  int group_size = 64;

  bool operator==(const Quantization&) const = default;

  bool is_affine() const {
    return mode == QUANTIZATION_AFFINE;
  }
};

} // namespace tessl
