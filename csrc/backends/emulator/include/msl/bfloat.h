#pragma once

#include "traits.h"

// MSL's bfloat: implicit conversion to float only, everything else explicit; each operation is computed in float
// and rounded to nearest even. A class, because __bf16 allows other conversions.
struct bfloat {
  uint16_t bits;

  bfloat() = default;

  template <typename T>
    requires(__is_arithmetic(T) || __is_same(T, half) || __is_enum(T))
  explicit(!__is_integral(T)) constexpr bfloat(T value) : bits(round(static_cast<float>(value))) {
  }

  constexpr operator float() const {
    return __builtin_bit_cast(float, static_cast<uint32_t>(bits) << 16);
  }

  template <typename T>
    requires((__is_arithmetic(T) || __is_same(T, half)) && !__is_same(T, float))
  explicit constexpr operator T() const {
    return static_cast<T>(static_cast<float>(*this));
  }

  static constexpr bfloat from_bits(uint16_t bits) {
    bfloat value(0);
    value.bits = bits;
    return value;
  }

  constexpr bfloat operator-() const {
    return from_bits(bits ^ 0x8000);
  }
  constexpr bfloat operator+() const {
    return *this;
  }
  constexpr bfloat& operator++() {
    return *this = bfloat(static_cast<float>(*this) + 1.0f);
  }
  constexpr bfloat& operator--() {
    return *this = bfloat(static_cast<float>(*this) - 1.0f);
  }

 private:
  static constexpr uint16_t round(float value) {
    const uint32_t x = __builtin_bit_cast(uint32_t, value);
    const bool nan = (x & 0x7fffffffu) > 0x7f800000u;
    return nan ? (x >> 16) | 0x40 : (x + 0x7fffu + ((x >> 16) & 1)) >> 16;
  }
};

// bfloat op bfloat and bfloat op integer are bfloat; with float or half the result is float.
#define EMU_BFLOAT_ARITHMETIC(op)                                              \
  constexpr bfloat operator op(bfloat a, bfloat b) {                           \
    return bfloat(static_cast<float>(a) op static_cast<float>(b));             \
  }                                                                            \
  template <typename T>                                                        \
    requires(__is_integral(T))                                                 \
  constexpr bfloat operator op(bfloat a, T b) {                                \
    return bfloat(static_cast<float>(a) op static_cast<float>(b));             \
  }                                                                            \
  template <typename T>                                                        \
    requires(__is_integral(T))                                                 \
  constexpr bfloat operator op(T a, bfloat b) {                                \
    return bfloat(static_cast<float>(a) op static_cast<float>(b));             \
  }                                                                            \
  template <typename T>                                                        \
    requires(__is_same(T, float) || __is_same(T, half))                        \
  constexpr float operator op(bfloat a, T b) {                                 \
    return static_cast<float>(a) op static_cast<float>(b);                     \
  }                                                                            \
  template <typename T>                                                        \
    requires(__is_same(T, float) || __is_same(T, half))                        \
  constexpr float operator op(T a, bfloat b) {                                 \
    return static_cast<float>(a) op static_cast<float>(b);                     \
  }                                                                            \
  template <typename T>                                                        \
  constexpr bfloat& operator op## = (bfloat & a, T b) {                        \
    return a = bfloat(static_cast<float>(a op b));                             \
  }                                                                            \
  template <typename T>                                                        \
    requires(__is_same(T, float) || __is_same(T, half))                        \
  constexpr T& operator op## = (T & a, bfloat b) {                             \
    return a = static_cast<T>(static_cast<float>(a) op static_cast<float>(b)); \
  }
EMU_BFLOAT_ARITHMETIC(+)
EMU_BFLOAT_ARITHMETIC(-)
EMU_BFLOAT_ARITHMETIC(*)
EMU_BFLOAT_ARITHMETIC(/)
#undef EMU_BFLOAT_ARITHMETIC

#define EMU_BFLOAT_COMPARISON(op)                          \
  constexpr bool operator op(bfloat a, bfloat b) {         \
    return static_cast<float>(a) op static_cast<float>(b); \
  }                                                        \
  template <typename T>                                    \
    requires(__is_arithmetic(T) || __is_same(T, half))     \
  constexpr bool operator op(bfloat a, T b) {              \
    return static_cast<float>(a) op static_cast<float>(b); \
  }                                                        \
  template <typename T>                                    \
    requires(__is_arithmetic(T) || __is_same(T, half))     \
  constexpr bool operator op(T a, bfloat b) {              \
    return static_cast<float>(a) op static_cast<float>(b); \
  }
EMU_BFLOAT_COMPARISON(<)
EMU_BFLOAT_COMPARISON(>)
EMU_BFLOAT_COMPARISON(<=)
EMU_BFLOAT_COMPARISON(>=)
EMU_BFLOAT_COMPARISON(==)
EMU_BFLOAT_COMPARISON(!=)
#undef EMU_BFLOAT_COMPARISON
