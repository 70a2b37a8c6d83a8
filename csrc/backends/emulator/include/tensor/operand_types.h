#pragma once

#include "formats.h"

// Which element types matmul2d accepts, by MSL version.

namespace emu {

using metal::is_same_v;

template <typename T>
constexpr bool is_8bit = is_same_v<T, signed char> || is_same_v<T, char> || is_same_v<T, uchar>;
template <typename T>
constexpr bool is_4bit = is_same_v<T, metal::int4b_format> || is_same_v<T, metal::uint4b_format>;
template <typename T>
constexpr bool is_2bit = is_same_v<T, metal::int2b_format> || is_same_v<T, metal::uint2b_format>;
template <typename T>
constexpr bool is_fp8_or_fp4 = is_same_v<T, metal::metal_fp8_e4m3_format> ||
                               is_same_v<T, metal::metal_fp8_e5m2_format> || is_same_v<T, metal::metal_fp4_e2m1_format>;
template <typename T>
constexpr bool is_signed_8bit = is_same_v<T, signed char> || is_same_v<T, char>;

template <typename L, typename R, typename D>
constexpr bool accepted_in_order() {
  constexpr bool to_float = is_same_v<D, float>;
  constexpr bool to_int = is_same_v<D, int>;
  constexpr bool msl41 = __METAL_VERSION__ >= 410;
  if constexpr (is_same_v<L, half> && is_same_v<R, half>) {
    return to_float || is_same_v<D, half>;
  } else if constexpr (is_same_v<L, bfloat> && is_same_v<R, bfloat>) {
    return to_float || is_same_v<D, bfloat>;
  } else if constexpr (is_same_v<L, float> && (is_same_v<R, float> || is_same_v<R, half> || is_same_v<R, bfloat>)) {
    return to_float;
  } else if constexpr (is_same_v<L, bfloat> && is_same_v<R, half>) {
    return to_float || is_same_v<D, half> || is_same_v<D, bfloat>;
  } else if constexpr (is_8bit<L> && is_8bit<R>) {
    return to_int && is_signed_8bit<L> == is_signed_8bit<R>;
  } else if constexpr (is_8bit<R>) {
    return (to_float && metal::is_floating_point_v<L>) ||
           (is_same_v<L, D> && (is_same_v<L, half> || is_same_v<L, bfloat>));
  } else if constexpr (is_4bit<R> || (is_2bit<R> && msl41)) {
    constexpr bool is_signed = is_same_v<R, metal::int4b_format> || is_same_v<R, metal::int2b_format>;
    if constexpr (is_8bit<L>) {
      return to_int && is_signed_8bit<L> == is_signed;
    } else {
      return (is_same_v<L, half> || is_same_v<L, bfloat>) && (to_float || is_same_v<L, D>);
    }
  } else if constexpr (is_fp8_or_fp4<R> && msl41) {
    return (is_same_v<L, half> || is_same_v<L, R>) && (to_float || is_same_v<D, half>);
  } else {
    return false;
  }
}

// Sub-byte and fp8 operands stand on the right only, except against their own kind; the others on either side.
template <typename L, typename R, typename D>
constexpr bool accepted_operands =
    accepted_in_order<L, R, D>() || (!is_4bit<L> && !is_2bit<L> && !is_fp8_or_fp4<L> && accepted_in_order<R, L, D>());

} // namespace emu
