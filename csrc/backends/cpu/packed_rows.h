#pragma once

#include <array>
#include <cstdint>

#include "backends/cpu/elements.h"
#include "backends/cpu/matmul.h"
#include "backends/cpu/pieces.h"
#include "backends/cpu/quantized_kernels.h"
#include "backends/cpu/scratch.h"

namespace tessl::cpu {

// Rows of packed values. Scales and biases have one column for each group: of the op's dtype in mode affine, else
// uint8 and no biases.
struct PackedMatrix {
  Quantization quantization;
  int64_t values = 0; // in a row
  const uint32_t* words = nullptr;
  std::array<int64_t, 2> word_strides{};
  MatrixView scales, biases;
};

// Some rows of a packed matrix, made ready for the kernels: scales and biases as float32, words contiguous.
class PackedRows {
 public:
  PackedRows(const PackedMatrix& w, mlx::core::Dtype dtype) : w_(w), element_(element_of(dtype)) {
  }

  // Makes these rows the ready ones.
  void prepare(Range rows);

  // One of the ready rows.
  PackedRow row(int64_t index) const;

 private:
  int64_t groups() const {
    return w_.values / w_.quantization.group_size;
  }
  const float* prepare_floats(const MatrixView& view, Scratch& scratch) const;
  const uint32_t* prepare_words();

  const PackedMatrix& w_;
  const Element element_;
  Range rows_;
  const float* scales_ = nullptr;
  const float* biases_ = nullptr;
  const uint32_t* words_ = nullptr;
  int64_t word_stride_ = 0;
};

} // namespace tessl::cpu
