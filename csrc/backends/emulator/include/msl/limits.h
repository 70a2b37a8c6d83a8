#pragma once

#include "bfloat.h"

namespace metal {

template <typename T>
struct numeric_limits {
  static_assert(__is_integral(T), "no numeric_limits for this type");
  static constexpr bool is_specialized = true;
  static constexpr bool is_integer = true;
  static constexpr bool is_signed = __is_signed(T);
  static constexpr int digits = 8 * sizeof(T) - (__is_signed(T) ? 1 : 0);
  static constexpr T max() {
    using U = make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(~U(0)) >> (__is_signed(T) ? 1 : 0));
  }
  static constexpr T min() {
    return static_cast<T>(~max());
  }
  static constexpr T lowest() {
    return min();
  }
};

template <>
struct numeric_limits<bool> {
  static constexpr bool is_specialized = true;
  static constexpr bool is_integer = true;
  static constexpr bool is_signed = false;
  static constexpr int digits = 1;
  static constexpr bool max() {
    return true;
  }
  static constexpr bool min() {
    return false;
  }
  static constexpr bool lowest() {
    return false;
  }
};

#define EMU_FLOAT_LIMITS(T, digits_, max_, min_, epsilon_, denorm_min_) \
  template <>                                                           \
  struct numeric_limits<T> {                                            \
    static constexpr bool is_specialized = true;                        \
    static constexpr bool is_integer = false;                           \
    static constexpr bool is_signed = true;                             \
    static constexpr bool has_infinity = true;                          \
    static constexpr int digits = digits_;                              \
    static constexpr T max() {                                          \
      return static_cast<T>(max_);                                      \
    }                                                                   \
    static constexpr T lowest() {                                       \
      return static_cast<T>(-max_);                                     \
    }                                                                   \
    static constexpr T min() {                                          \
      return static_cast<T>(min_);                                      \
    }                                                                   \
    static constexpr T epsilon() {                                      \
      return static_cast<T>(epsilon_);                                  \
    }                                                                   \
    static constexpr T denorm_min() {                                   \
      return static_cast<T>(denorm_min_);                               \
    }                                                                   \
    static constexpr T infinity() {                                     \
      return static_cast<T>(__builtin_inff());                          \
    }                                                                   \
    static constexpr T quiet_NaN() {                                    \
      return static_cast<T>(__builtin_nanf(""));                        \
    }                                                                   \
    static constexpr T signaling_NaN() {                                \
      return quiet_NaN();                                               \
    }                                                                   \
  };
EMU_FLOAT_LIMITS(float, 24, 0x1.fffffep127f, 0x1p-126f, 0x1p-23f, 0x1p-149f)
EMU_FLOAT_LIMITS(half, 11, 65504.0f, 0x1p-14f, 0x1p-10f, 0x1p-24f)
EMU_FLOAT_LIMITS(bfloat, 8, 0x1.fep127f, 0x1p-126f, 0x1p-7f, 0x1p-133f)
#undef EMU_FLOAT_LIMITS

} // namespace metal
