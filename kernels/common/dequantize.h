#pragma once

#include <metal_stdlib>

#include "kernels/args/quantized_matmul.h"
#include "kernels/common/vector_io.h"

// Packed weights as float32: scale * value + bias in mode affine, scale * value in the others.
//
// All packings are little-endian bit streams along a row, and eight values are `bits` bytes: an octet, which every
// kernel decodes at once. A group holds whole octets.
//
// Decoders are by integer arithmetic with one branch for subnormals: half subnormals need not survive on a GPU.

constant int quantized_mode [[function_constant(11)]]; // a QuantizationMode
constant int quantized_bits [[function_constant(12)]];
constant int quantized_group [[function_constant(13)]];       // values that share a scale
constant bool quantized_has_biases [[function_constant(14)]]; // mode affine, and K > 0

// Sign, 2 bits of exponent with bias 1, 1 of mantissa: 0, 1/2, 1, 3/2, 2, 3, 4, 6 and their negatives.
inline float decode_e2m1(uint code) {
  const uint magnitude = code & 7u;
  const float value = magnitude < 2u ? 0.5f * float(magnitude) : as_type<float>((magnitude << 22) + (126u << 23));
  return (code & 8u) != 0u ? -value : value;
}

// Sign, 4 bits of exponent with bias 7, 3 of mantissa; all ones is NaN, there is no infinity.
inline float decode_e4m3(uint code) {
  const uint magnitude = code & 0x7fu;
  const float normal = as_type<float>(magnitude == 0x7fu ? 0x7fc00000u : (magnitude << 20) + (120u << 23));
  const float value = magnitude < 8u ? float(magnitude) / 512.0f : normal;
  return (code & 0x80u) != 0u ? -value : value;
}

// 2^(code - 127); 255 is infinity, as MLX reads it.
inline float decode_e8m0(uint code) {
  return as_type<float>(code == 0u ? 0x00400000u : code << 23);
}

inline float decode_value(uint code) {
  switch (quantized_mode) {
    case QUANTIZATION_MXFP4:
    case QUANTIZATION_NVFP4:
      return decode_e2m1(code);
    case QUANTIZATION_MXFP8:
      return decode_e4m3(code);
    default:
      return float(code);
  }
}

// The rows of one member of the batch. Scales are T in mode affine, else bytes.
template <typename T>
struct PackedMatrix {
  device const uint* words;
  device const uchar* scales;
  device const T* biases;
  int64_t ld_words;
  int64_t ld_scales;
  int64_t ld_biases;
};

// Eight weights in order.
struct Octet {
  float4 low;
  float4 high;
};

// The 64 bits, or fewer, of an octet, the first value lowest.
inline uint2 load_octet(device const uint* row, int octet) {
  switch (quantized_bits) {
    case 2:
      return uint2(reinterpret_cast<device const ushort*>(row)[octet], 0u);
    case 4:
      return uint2(row[octet], 0u);
    case 8:
      return uint2(row[2 * octet], row[2 * octet + 1]);
    case 6: {
      device const ushort* p = reinterpret_cast<device const ushort*>(row) + 3 * octet;
      return uint2(uint(p[0]) | uint(p[1]) << 16, p[2]);
    }
    default: { // 3 or 5 bytes
      device const uchar* p = reinterpret_cast<device const uchar*>(row) + quantized_bits * octet;
      const uint low = uint(p[0]) | uint(p[1]) << 8 | uint(p[2]) << 16;
      return quantized_bits == 3 ? uint2(low, 0u) : uint2(low | uint(p[3]) << 24, p[4]);
    }
  }
}

// Value i of an octet. i is known once loops are unrolled, and with the number of bits so is every branch.
inline uint octet_code(uint2 octet, int i) {
  const int bit = i * quantized_bits;
  uint code = bit < 32 ? octet.x >> bit : octet.y >> (bit - 32);
  if (bit < 32 && bit + quantized_bits > 32) {
    code |= octet.y << (32 - bit);
  }
  return code & ((1u << quantized_bits) - 1u);
}

inline float4 decode_four(uint2 octet, int first) {
  return float4(
      decode_value(octet_code(octet, first)),
      decode_value(octet_code(octet, first + 1)),
      decode_value(octet_code(octet, first + 2)),
      decode_value(octet_code(octet, first + 3))
  );
}

template <typename T>
inline float load_scale(thread const PackedMatrix<T>& w, int row, int group) {
  const int64_t index = row * w.ld_scales + group;
  switch (quantized_mode) {
    case QUANTIZATION_MXFP4:
    case QUANTIZATION_MXFP8:
      return decode_e8m0(w.scales[index]);
    case QUANTIZATION_NVFP4:
      return decode_e4m3(w.scales[index]);
    default:
      return float(reinterpret_cast<device const T*>(w.scales)[index]);
  }
}

// The bias of a group; 0 where the mode has none.
template <typename T>
inline float load_group_bias(thread const PackedMatrix<T>& w, int row, int group) {
  return quantized_has_biases ? float(w.biases[row * w.ld_biases + group]) : 0.0f;
}

inline float4 scale_and_add(float4 values, float scale, float bias) {
  return quantized_has_biases ? metal::fma(float4(scale), values, float4(bias)) : scale * values;
}

// The weights from `column` on, a multiple of 8, of one row.
template <typename T>
inline Octet load_weights(thread const PackedMatrix<T>& w, int row, int column) {
  const uint2 octet = load_octet(w.words + row * w.ld_words, column / 8);
  const int group = column / quantized_group;
  const float scale = load_scale(w, row, group);
  const float bias = load_group_bias(w, row, group);
  return {scale_and_add(decode_four(octet, 0), scale, bias), scale_and_add(decode_four(octet, 4), scale, bias)};
}

// The bits of four values from `column` on, a multiple of 4, the first value lowest: at most 24 of them, from a whole
// or a half byte on.
inline uint load_quad(device const uint* row, int column) {
  device const uchar* p = reinterpret_cast<device const uchar*>(row) + column / 4 * quantized_bits / 2;
  switch (quantized_bits) {
    case 2:
      return p[0];
    case 4:
      return *reinterpret_cast<device const ushort*>(p);
    case 8:
      return *reinterpret_cast<device const uint*>(p);
    case 3:
      return (uint(p[0]) | uint(p[1]) << 8) >> (column & 4);
    default: // 5 or 6; four values of 5 bits may begin at a half byte
      return (uint(p[0]) | uint(p[1]) << 8 | uint(p[2]) << 16) >> (quantized_bits == 5 ? column & 4 : 0);
  }
}

// The weights from `column` on, a multiple of 4, of one row.
template <typename T>
inline float4 load_four_weights(thread const PackedMatrix<T>& w, int row, int column) {
  const float4 values = decode_four(uint2(load_quad(w.words + row * w.ld_words, column), 0u), 0);
  const int group = column / quantized_group;
  return scale_and_add(values, load_scale(w, row, group), load_group_bias(w, row, group));
}
