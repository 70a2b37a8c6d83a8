// Compiled once for each instruction set: see vectors.h.

#include "backends/cpu/quantized_kernels.h"

#include "backends/cpu/vectors.h"

namespace tessl::cpu::TESSL_CPU_ISA {
namespace {

// Decoding reads 32 or 128 bits wherever a few are wanted: up to 6 bytes beyond the last value, which a group that
// follows always has.
constexpr int64_t overread = 8;

constexpr int64_t max_group_bytes = 128;

// Whether decoding reads no more than it should.
#if defined(__AVX512F__)
template <int Bits>
constexpr bool reads_exactly = Bits == 2 || Bits == 4 || Bits == 8;
#else
template <int Bits>
constexpr bool reads_exactly = Bits == 8;
#endif

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

#if defined(__AVX512F__)
// The values [index, index + 16) of a stream of Bits < 8 bits each, other bits above them; index is a multiple of 16. A
// value lies in the two 16-bit words from the one on where it begins.
template <int Bits>
TESSL_INLINE Words unpack_low(const uint8_t* stream, int64_t index) {
  typedef uint16_t Pairs __attribute__((vector_size(64)));
  const uint8_t* bytes = stream + static_cast<uint64_t>(index) * Bits / 8;
  __m128i packed;
  if constexpr (Bits == 2) {
    packed = _mm_cvtsi32_si128(read<int32_t>(bytes));
  } else if constexpr (Bits <= 4) {
    packed = _mm_cvtsi64_si128(read<int64_t>(bytes));
  } else {
    packed = read<__m128i>(bytes);
  }
  Pairs places;
  Words shifts;
  for (int i = 0; i < lanes; ++i) {
    places[2 * i] = static_cast<uint16_t>(i * Bits / 16);
    places[2 * i + 1] = static_cast<uint16_t>(i * Bits / 16 + 1);
    shifts[i] = static_cast<uint32_t>(i * Bits % 16);
  }
  const auto pairs = _mm512_maskz_permutexvar_epi16(~0u, (__m512i)places, _mm512_zextsi128_si512(packed));
  return (Words)pairs >> shifts;
}
#endif

// The values [index, index + lanes) of a stream of Bits bits each; index is a multiple of lanes. Four values lie in at
// most 24 bits from a whole or a half byte on, so that a word read from that byte holds them all.
template <int Bits>
TESSL_INLINE Words unpack(const uint8_t* stream, int64_t index) {
  if constexpr (Bits == 8) {
    return widen_bytes(stream + index);
  } else {
#if defined(__AVX512F__)
    return unpack_low<Bits>(stream, index) & ((1u << Bits) - 1);
#else
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
#endif
  }
}

// Formats: what the codes of values mean.
template <int Bits>
struct Unsigned {
  static constexpr int bits = Bits;
  static constexpr bool has_bias = true;

  TESSL_INLINE Floats decode(Words code) {
    return to_floats(code);
  }
};

// Sign, 2 bits of exponent with bias 1, 1 of mantissa: 0, 1/2, 1, 3/2, 2, 3, 4, 6 and their negatives.
struct E2M1 {
  static constexpr int bits = 4;
  static constexpr bool has_bias = false;

  TESSL_INLINE Floats decode(Words code) {
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

  TESSL_INLINE Floats decode(Words code) {
    const Words magnitude = code & 0x7fu;
    const Words normal = (magnitude << 20) + (120u << 23);
    const Words denormal = (Words)(to_floats(magnitude) * 0x1p-9f);
    const Words value = magnitude < 8u ? denormal : normal;
    const Words nan = Words{} + 0x7fc00000u;
    return (Floats)((magnitude == 0x7fu ? nan : value) | (code & 0x80u) << 24);
  }
};

template <typename Format>
TESSL_INLINE Floats weights_of(Words code, float scale, float bias) {
  const Floats values = Format::decode(code);
  return Format::has_bias ? scale * values + bias : scale * values;
}

// The weights of one group.
template <typename Format>
struct Group {
  const float scale, bias;

  [[gnu::always_inline]] Floats weights(const uint8_t* stream, int64_t index) const {
    return weights_of<Format>(unpack<Format::bits>(stream, index), scale, bias);
  }
};

#if defined(__AVX512F__)
// The few that there can be stand in a table, where the low four bits of an index choose one.
template <typename Format>
  requires(Format::bits <= 4)
struct Group<Format> {
  const Floats table;

  [[gnu::always_inline]] Group(float scale, float bias) : table(weights_of<Format>(codes(), scale, bias)) {
  }

  [[gnu::always_inline]] Floats weights(const uint8_t* stream, int64_t index) const {
    const Words code = unpack_low<Format::bits>(stream, index);
    return (Floats)_mm512_maskz_permutexvar_ps(0xffff, (__m512i)code, (__m512)table);
  }

 private:
  TESSL_INLINE Words codes() {
    Words codes;
    for (int i = 0; i < lanes; ++i) {
      codes[i] = static_cast<uint32_t>(i) & ((1u << Format::bits) - 1);
    }
    return codes;
  }
};
#endif

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

// Calls f(group, stream, first, count) for each group's part of [begin, end): `count` values from value `first` of
// `stream` on. Where reading goes beyond the end, the last of a row are read from a copy.
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
    const Group<Format> weights{row.scales[group], Format::has_bias ? row.biases[group] : 0.0f};
    if (reads_exactly<Format::bits> || begin + count < row.values) {
      f(weights, stream, begin, count);
    } else {
      std::memcpy(last, stream + begin * Format::bits / 8, static_cast<size_t>(count * Format::bits / 8));
      f(weights, last, 0, count);
    }
    begin += count;
    ++group;
  }
}

template <typename Format>
void dequantize_row(
    const Quantization& quantization, float* target, const PackedRow& row, int64_t begin, int64_t count
) {
  const auto decode_group = [&](const Group<Format>& group, const uint8_t* stream, int64_t first, int64_t values)
                                __attribute__((always_inline)) {
                                  for (int64_t i = 0; i < values; i += lanes) {
                                    store(target + i, group.weights(stream, first + i));
                                  }
                                  target += values;
                                };
  for_each_group<Format>(quantization, row, begin, begin + count, decode_group);
}

// Two accumulators a row, taken in turns, hide the latency of their additions. A row's bits do not depend on how many
// rows there are.
template <typename Format, int Rows>
void dot_row(
    const Quantization& quantization, float* sums, int64_t ld_sums, const float* a, int64_t lda, const PackedRow& row
) {
  constexpr int chains = 2;
  Floats accumulators[chains][Rows] = {};
  const auto add_group = [&](const Group<Format>& group, const uint8_t* stream, int64_t first, int64_t values)
                             __attribute__((always_inline)) {
                               const auto add = [&](int chain, int64_t i) __attribute__((always_inline)) {
                                 const Floats w = group.weights(stream, first + i);
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
