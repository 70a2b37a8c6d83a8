// Compiled once for each instruction set: see vectors.h.

#include "backends/cpu/quantized_kernels.h"

#include "backends/cpu/vectors.h"

namespace tessl::cpu::TESSL_CPU_ISA {
namespace {

// Decoding reads 32 bits wherever a few are wanted: up to 3 bytes beyond the last value.
constexpr int64_t overread = 4;

constexpr int64_t max_group_bytes = 128;

TESSL_INLINE uint32_t read_word(const uint8_t* bytes) {
  uint32_t word;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

TESSL_INLINE Floats to_floats(Words small) {
  return __builtin_convertvector((Ints)small, Floats);
}

TESSL_INLINE Words widen_bytes(const uint8_t* bytes) {
#if defined(__AVX512F__)
  return (Words)_mm512_maskz_cvtepu8_epi32(0xffff, read<__m128i>(bytes));
#elif defined(__AVX2__)
  return (Words)_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(read<int64_t>(bytes)));
#else
  typedef uint8_t Bytes __attribute__((vector_size(lanes)));
  return __builtin_convertvector(read<Bytes>(bytes), Words);
#endif
}

// The values [index, index + lanes) of a stream of Bits bits each; index is a multiple of lanes. Four values lie in at
// most 24 bits from a whole or a half byte on, so that a word read from that byte holds them all.
template <int Bits>
TESSL_INLINE Words unpack(const uint8_t* stream, int64_t index) {
  if constexpr (Bits == 8) {
    return widen_bytes(stream + index);
  } else {
    const auto first_bit = static_cast<uint64_t>(index) * Bits;
    const uint8_t* bytes = stream + first_bit / 8;
    const uint32_t half_byte = lanes * Bits % 8 == 0 ? 0 : static_cast<uint32_t>(first_bit % 8);
    Words words, shifts;
    if constexpr (lanes * Bits <= 32) {
      words = Words{} + read_word(bytes);
      for (int i = 0; i < lanes; ++i) {
        shifts[i] = static_cast<uint32_t>(i * Bits);
      }
    } else {
      for (int i = 0; i < lanes; ++i) {
        const int bit = i / 4 * 4 * Bits;
        words[i] = read_word(bytes + bit / 8);
        shifts[i] = static_cast<uint32_t>(bit % 8 + i % 4 * Bits);
      }
    }
    return (words >> (shifts + half_byte)) & ((1u << Bits) - 1);
  }
}

template <int Bits>
struct Unsigned {
  static constexpr int bits = Bits;
  static constexpr bool has_bias = true;

  TESSL_INLINE Floats decode(const uint8_t* stream, int64_t index) {
    return to_floats(unpack<Bits>(stream, index));
  }
};

// Sign, 2 bits of exponent with bias 1, 1 of mantissa: 0, 1/2, 1, 3/2, 2, 3, 4, 6 and their negatives.
struct E2M1 {
  static constexpr int bits = 4;
  static constexpr bool has_bias = false;

  TESSL_INLINE Floats decode(const uint8_t* stream, int64_t index) {
    const Words code = unpack<4>(stream, index);
    const Words sign = (code & 8u) << 28;
#if defined(__AVX2__) && !defined(__AVX512F__)
    const Floats table = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    const Words value = (Words)_mm256_permutevar8x32_ps((__m256)table, (__m256i)code);
#else
    const Words magnitude = code & 7u;
    const Words normal = (magnitude << 22) + (126u << 23);
    const Words value = magnitude < 2u ? (Words)(to_floats(magnitude) * 0.5f) : normal;
#endif
    return (Floats)(value | sign);
  }
};

// Sign, 4 bits of exponent with bias 7, 3 of mantissa; 0x7f is NaN, there is no infinity.
struct E4M3 {
  static constexpr int bits = 8;
  static constexpr bool has_bias = false;

  TESSL_INLINE Floats decode(const uint8_t* stream, int64_t index) {
    const Words code = unpack<8>(stream, index);
    const Words magnitude = code & 0x7fu;
    const Words normal = (magnitude << 20) + (120u << 23);
    const Words denormal = (Words)(to_floats(magnitude) * 0x1p-9f);
    const Words value = magnitude < 8u ? denormal : normal;
    const Words nan = Words{} + 0x7fc00000u;
    return (Floats)((magnitude == 0x7fu ? nan : value) | (code & 0x80u) << 24);
  }
};

// Calls f(Format{}).
template <typename Function>
TESSL_INLINE void with_format(const Quantization& quantization, Function f) {
  switch (quantization.mode) {
    case QUANTIZATION_AFFINE:
      switch (quantization.bits) {
        case 2:
          return f(Unsigned<2>{});
        case 3:
          return f(Unsigned<3>{});
        case 4:
          return f(Unsigned<4>{});
        case 5:
          return f(Unsigned<5>{});
        case 6:
          return f(Unsigned<6>{});
        case 8:
          return f(Unsigned<8>{});
      }
      __builtin_unreachable();
    case QUANTIZATION_MXFP4:
    case QUANTIZATION_NVFP4:
      return f(E2M1{});
    case QUANTIZATION_MXFP8:
      return f(E4M3{});
  }
}

// Calls f(stream, first, count, scale, bias) for each group's part of [begin, end): `count` values from value `first`
// of `stream` on. The last of a row are read from a copy, which may be read beyond its end.
template <typename Format, typename Function>
TESSL_INLINE void for_each_group(
    const Quantization& quantization, const PackedRow& row, int64_t begin, int64_t end, Function f
) {
  const int64_t group_size = quantization.group_size;
  const auto* stream = reinterpret_cast<const uint8_t*>(row.words);
  uint8_t last[max_group_bytes + overread];
  int64_t group = begin / group_size;
  while (begin < end) {
    const int64_t group_end = (group + 1) * group_size;
    const int64_t count = (group_end < end ? group_end : end) - begin;
    const float bias = Format::has_bias ? row.biases[group] : 0.0f;
    if (begin + count < row.values) {
      f(stream, begin, count, row.scales[group], bias);
    } else {
      std::memcpy(last, stream + begin * Format::bits / 8, static_cast<size_t>(count * Format::bits / 8));
      f(last, 0, count, row.scales[group], bias);
    }
    begin += count;
    ++group;
  }
}

template <typename Format>
TESSL_INLINE Floats weights(const uint8_t* stream, int64_t index, float scale, float bias) {
  const Floats values = Format::decode(stream, index);
  return Format::has_bias ? scale * values + bias : scale * values;
}

template <typename Format>
void dequantize_row(
    const Quantization& quantization, float* target, const PackedRow& row, int64_t begin, int64_t count
) {
  const auto decode_group = [&](const uint8_t* stream, int64_t first, int64_t values, float scale, float bias)
                                __attribute__((always_inline)) {
                                  for (int64_t i = 0; i < values; i += lanes) {
                                    store(target + i, weights<Format>(stream, first + i, scale, bias));
                                  }
                                  target += values;
                                };
  for_each_group<Format>(quantization, row, begin, begin + count, decode_group);
}

TESSL_INLINE float sum_lanes(Floats x) {
  float sum = 0.0f;
  for (int i = 0; i < lanes; ++i) {
    sum += x[i];
  }
  return sum;
}

// Two accumulators a row, taken in turns, hide the latency of their additions. A row's bits do not depend on how many
// rows there are.
template <typename Format, int Rows>
void dot_row(
    const Quantization& quantization, float* sums, int64_t ld_sums, const float* a, int64_t lda, const PackedRow& row
) {
  constexpr int chains = 2;
  Floats accumulators[chains][Rows] = {};
  const auto add_group = [&](const uint8_t* stream, int64_t first, int64_t values, float scale, float bias)
                             __attribute__((always_inline)) {
                               const auto add = [&](int chain, int64_t i) __attribute__((always_inline)) {
                                 const Floats w = weights<Format>(stream, first + i, scale, bias);
                                 for (int m = 0; m < Rows; ++m) {
                                   accumulators[chain][m] += w * load(a + m * lda + i);
                                 }
                               };
                               int64_t i = 0;
                               for (; i + chains * lanes <= values; i += chains * lanes) {
                                 for (int chain = 0; chain < chains; ++chain) {
                                   add(chain, i + chain * lanes);
                                 }
                               }
                               for (; i < values; i += lanes) {
                                 add(0, i);
                               }
                               a += values;
                             };
  for_each_group<Format>(quantization, row, 0, row.values, add_group);
  for (int m = 0; m < Rows; ++m) {
    Floats sum = accumulators[0][m];
    for (int chain = 1; chain < chains; ++chain) {
      sum += accumulators[chain][m];
    }
    sums[m * ld_sums] = sum_lanes(sum);
  }
}

void dequantize_any(
    const Quantization& quantization, float* target, const PackedRow& row, int64_t begin, int64_t count
) {
  with_format(quantization, [&](auto format) {
    dequantize_row<decltype(format)>(quantization, target, row, begin, count);
  });
}

void dot_any(
    const Quantization& quantization,
    float* sums,
    int64_t ld_sums,
    const float* a,
    int64_t lda,
    const PackedRow& row,
    int64_t M
) {
  static_assert(max_packed_dot_rows == 4);
  with_format(quantization, [&](auto format) {
    using Format = decltype(format);
    switch (M) {
      case 1:
        return dot_row<Format, 1>(quantization, sums, ld_sums, a, lda, row);
      case 2:
        return dot_row<Format, 2>(quantization, sums, ld_sums, a, lda, row);
      case 3:
        return dot_row<Format, 3>(quantization, sums, ld_sums, a, lda, row);
      case 4:
        return dot_row<Format, 4>(quantization, sums, ld_sums, a, lda, row);
      default:
        __builtin_unreachable();
    }
  });
}

} // namespace

extern const QuantizedKernels quantized;
const QuantizedKernels quantized = {dequantize_any, dot_any};

} // namespace tessl::cpu::TESSL_CPU_ISA
