#pragma once

#include <metal_stdlib>

#include "kernels/common/dequantize.h"
#include "kernels/common/matmul_epilogue.h"
#include "kernels/common/staged_block.h"

// What the kernels of quantized_matmul share: their operands at a member of the batch, and staged blocks of weights.

// Each four elements of a row of x that start at a multiple of four lie on a boundary of four.
constant bool quantized_vector_x [[function_constant(10)]];

constant constexpr int octet_size = 8;

template <typename T>
inline PackedMatrix<T> packed_matrix(
    device const uint* w,
    device const uchar* scales,
    device const T* biases,
    constant QuantizedMatmulArgs& args,
    uint batch
) {
  const int64_t scale_offset = matmul_batch_offset(batch, args.product, args.scales_batch_strides);
  PackedMatrix<T> matrix;
  matrix.words = w + matmul_batch_offset(batch, args.product, args.product.b_batch_strides);
  matrix.scales = scales + scale_offset * (quantized_mode == QUANTIZATION_AFFINE ? int(sizeof(T)) : 1);
  if (quantized_has_biases) {
    matrix.biases = biases + matmul_batch_offset(batch, args.product, args.biases_batch_strides);
  }
  matrix.ld_words = args.product.ldb;
  matrix.ld_scales = args.ld_scales;
  matrix.ld_biases = args.ld_biases;
  return matrix;
}

template <typename T>
inline MatmulAddends<T> addends_of(device const T* bias, constant MatmulArgs& args, uint batch) {
  MatmulAddends<T> addends;
  if (matmul_has_bias) {
    addends.bias = bias + matmul_batch_offset(batch, args, args.bias.batch_strides);
  }
  return addends;
}

// Fills a staged block with weights of the rows from `row` on and the columns from `column` on; zeros past those that
// are left.
template <typename T, int ROWS, int COLUMNS>
inline void stage_weights(
    threadgroup T* block, thread const PackedMatrix<T>& w, int row, int column, int2 left, int thread_index
) {
  constexpr int octets = COLUMNS / octet_size;
  for (int i = thread_index; i < ROWS * octets; i += matmul_threads) {
    const int block_row = i / octets;
    const int block_column = i % octets * octet_size;
    Octet octet = {float4(0.0f), float4(0.0f)};
    if (block_row < left.x && block_column < left.y) {
      octet = load_weights(w, row + block_row, column + block_column);
    }
    threadgroup T* slot = block + (block_row * StagedBlock<T, ROWS, COLUMNS>::pitch + block_column);
    *reinterpret_cast<threadgroup metal::vec<T, 4>*>(slot) = from_float4<T>(octet.low);
    *reinterpret_cast<threadgroup metal::vec<T, 4>*>(slot + 4) = from_float4<T>(octet.high);
  }
}
