#pragma once

#include "../msl/math.h"

// Element formats that no C++ type has: tags, stored in bytes, sub-byte ones with the low bits first.

namespace metal {

struct int4b_format {};
struct uint4b_format {};
struct int2b_format {};
struct uint2b_format {};
struct metal_fp8_e4m3_format {};
struct metal_fp8_e5m2_format {};
struct metal_fp8_ue8m0_format {};
struct metal_fp4_e2m1_format {};

} // namespace metal

using metal::int2b_format;
using metal::int4b_format;
using metal::metal_fp4_e2m1_format;
using metal::metal_fp8_e4m3_format;
using metal::metal_fp8_e5m2_format;
using metal::metal_fp8_ue8m0_format;
using metal::uint2b_format;
using metal::uint4b_format;

namespace emu {

EMU_RUNTIME_BEGIN

// sign, exponent and mantissa of a small float; no infinities: e4m3 has NaN at all ones, e2m1 has neither.
inline float decode_small_float(uint32_t code, int exponent_bits, int mantissa_bits) {
  const uint32_t mantissa = code & ((1u << mantissa_bits) - 1);
  const uint32_t exponent = code >> mantissa_bits & ((1u << exponent_bits) - 1);
  const bool negative = code >> (exponent_bits + mantissa_bits) & 1;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const float magnitude = exponent == 0 ? __builtin_ldexpf(static_cast<float>(mantissa), 1 - bias - mantissa_bits)
                                        : __builtin_ldexpf(
                                              static_cast<float>(mantissa | 1u << mantissa_bits),
                                              static_cast<int>(exponent) - bias - mantissa_bits
                                          );
  return negative ? -magnitude : magnitude;
}

inline float decode_e4m3(uint32_t code) {
  return (code & 0x7f) == 0x7f ? __builtin_nanf("") : decode_small_float(code, 4, 3);
}

// e5m2 is the upper half of a half.
inline float decode_e5m2(uint32_t code) {
  return static_cast<float>(__builtin_bit_cast(half, static_cast<uint16_t>(code << 8)));
}

inline float decode_ue8m0(uint32_t code) {
  return code == 0xff ? __builtin_nanf("") : __builtin_ldexpf(1.0f, static_cast<int>(code) - 127);
}

// How elements of T lie in memory and what they are worth.
template <typename T>
struct Format {
  static constexpr int bits = 8 * sizeof(T);
  using storage = T;
};

#define EMU_FORMAT(tag, bits_, value, expression) \
  template <>                                     \
  struct Format<metal::tag> {                     \
    static constexpr int bits = bits_;            \
    using storage = uchar;                        \
    static value decode(uint32_t code) {          \
      return expression;                          \
    }                                             \
  };
EMU_FORMAT(int4b_format, 4, int, static_cast<int>(code << 28) >> 28)
EMU_FORMAT(uint4b_format, 4, int, static_cast<int>(code))
EMU_FORMAT(int2b_format, 2, int, static_cast<int>(code << 30) >> 30)
EMU_FORMAT(uint2b_format, 2, int, static_cast<int>(code))
EMU_FORMAT(metal_fp8_e4m3_format, 8, float, decode_e4m3(code))
EMU_FORMAT(metal_fp8_e5m2_format, 8, float, decode_e5m2(code))
EMU_FORMAT(metal_fp8_ue8m0_format, 8, float, decode_ue8m0(code))
EMU_FORMAT(metal_fp4_e2m1_format, 4, float, decode_small_float(code, 2, 1))
#undef EMU_FORMAT

template <typename T>
constexpr bool is_format = requires { Format<T>::decode(0u); };

// Element i of an array of T.
template <typename T>
EMU_INLINE auto read_element(const typename Format<T>::storage* data, int64_t i) {
  if constexpr (is_format<T>) {
    constexpr int per_byte = 8 / Format<T>::bits;
    const int64_t byte = i >= 0 ? i / per_byte : (i - per_byte + 1) / per_byte;
    const int shift = static_cast<int>(i - byte * per_byte) * Format<T>::bits;
    return Format<T>::decode(data[byte] >> shift & ((1u << Format<T>::bits) - 1));
  } else {
    return data[i];
  }
}

EMU_RUNTIME_END

} // namespace emu
