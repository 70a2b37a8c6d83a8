// out[i, :] = row ids[i] of packed weights, decoded. Packings: common/dequantize.h.
//
//   each thread: eight values of one row
//     id = ids[i], counted from the end when negative
//     out[i, octet] = scale * values + bias, or zeros when there is no row `id`
//
// Provenance: MLX's QuantizedEmbedding gathers packed rows and decodes them; here both are one pass.

#include <metal_stdlib>

#include "kernels/args/quantized_embedding.h"
#include "kernels/common/dequantize.h"
#include "kernels/common/instantiate.h"

using namespace metal;

template <typename T>
[[kernel]] void quantized_embedding(
    device const int32_t* ids [[buffer(0)]],
    device const uint* w [[buffer(1)]],
    device const uchar* scales [[buffer(2)]],
    device const T* biases [[buffer(3), function_constant(quantized_has_biases)]],
    device T* out [[buffer(4)]],
    constant QuantizedEmbeddingArgs& args [[buffer(5)]],
    uint3 position [[thread_position_in_grid]]
) {
  constexpr int octet_size = 8;
  const int column = int(position.x) * octet_size;
  if (column >= args.D) {
    return;
  }
  const int id = ids[position.y];
  const int row = id < 0 ? id + args.V : id;
  Octet octet = {float4(0.0f), float4(0.0f)};
  if (row >= 0 && row < args.V) {
    PackedMatrix<T> matrix;
    matrix.words = w;
    matrix.scales = scales;
    if (quantized_has_biases) {
      matrix.biases = biases;
    }
    matrix.ld_words = args.ld_words;
    matrix.ld_scales = args.ld_scales;
    matrix.ld_biases = args.ld_biases;
    octet = load_weights(matrix, row, column);
  }
  device T* p = out + (int64_t(position.y) * args.D + column);
  store4(p, from_float4<T>(octet.low));
  store4(p + 4, from_float4<T>(octet.high));
}

// clang-format off
instantiate_kernel("quantized_embedding_float32", quantized_embedding, float)
instantiate_kernel("quantized_embedding_float16", quantized_embedding, half)
instantiate_kernel("quantized_embedding_bfloat16", quantized_embedding, bfloat)
