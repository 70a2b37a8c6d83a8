#pragma once

#include "simd.h"

// Names that Apple's own headers are written with, and that some kernels therefore use.

constexpr int __METAL_MAYBE_FAST_MATH__ = 0;
constexpr int __METAL_FAST_MATH__ = 1;
constexpr int __METAL_PRECISE_MATH__ = 2;
constexpr int __METAL_MEMORY_SCOPE_SYSTEM__ = 4;

#define EMU_BUILTIN_UNARY(name)                   \
  inline float __metal_##name(float x, int = 0) { \
    return metal::name(x);                        \
  }
EMU_BUILTIN_UNARY(acos)
EMU_BUILTIN_UNARY(acosh)
EMU_BUILTIN_UNARY(asin)
EMU_BUILTIN_UNARY(asinh)
EMU_BUILTIN_UNARY(atan)
EMU_BUILTIN_UNARY(atanh)
EMU_BUILTIN_UNARY(ceil)
EMU_BUILTIN_UNARY(cos)
EMU_BUILTIN_UNARY(cosh)
EMU_BUILTIN_UNARY(cospi)
EMU_BUILTIN_UNARY(exp)
EMU_BUILTIN_UNARY(exp10)
EMU_BUILTIN_UNARY(exp2)
EMU_BUILTIN_UNARY(fabs)
EMU_BUILTIN_UNARY(floor)
EMU_BUILTIN_UNARY(fract)
EMU_BUILTIN_UNARY(log)
EMU_BUILTIN_UNARY(log10)
EMU_BUILTIN_UNARY(log2)
EMU_BUILTIN_UNARY(rint)
EMU_BUILTIN_UNARY(round)
EMU_BUILTIN_UNARY(rsqrt)
EMU_BUILTIN_UNARY(sin)
EMU_BUILTIN_UNARY(sinh)
EMU_BUILTIN_UNARY(sinpi)
EMU_BUILTIN_UNARY(sqrt)
EMU_BUILTIN_UNARY(tan)
EMU_BUILTIN_UNARY(tanh)
EMU_BUILTIN_UNARY(tanpi)
EMU_BUILTIN_UNARY(trunc)
#undef EMU_BUILTIN_UNARY

#define EMU_BUILTIN_BINARY(name)                           \
  inline float __metal_##name(float x, float y, int = 0) { \
    return metal::name(x, y);                              \
  }
EMU_BUILTIN_BINARY(atan2)
EMU_BUILTIN_BINARY(divide)
EMU_BUILTIN_BINARY(fmax)
EMU_BUILTIN_BINARY(fmin)
EMU_BUILTIN_BINARY(fmod)
EMU_BUILTIN_BINARY(nextafter)
EMU_BUILTIN_BINARY(pow)
EMU_BUILTIN_BINARY(powr)
#undef EMU_BUILTIN_BINARY

inline float __metal_fma(float x, float y, float z) {
  return metal::fma(x, y, z);
}
inline float __metal_fmax3(float x, float y, float z, int = 0) {
  return metal::fmax(x, metal::fmax(y, z));
}
inline float __metal_fmin3(float x, float y, float z, int = 0) {
  return metal::fmin(x, metal::fmin(y, z));
}
inline float __metal_fmedian3(float x, float y, float z, int = 0) {
  return metal::fmax(metal::fmin(x, y), metal::fmin(metal::fmax(x, y), z));
}
inline float __metal_ldexp(float x, int exponent, int = 0) {
  return metal::ldexp(x, exponent);
}
inline float __metal_frexp(float x, int* exponent) {
  return metal::frexp(x, *exponent);
}

inline ushort __metal_get_simdgroup_size(ushort) {
  return emu::simd_width;
}
inline ushort __metal_get_thread_index_in_simdgroup(ushort) {
  return emu::machine->lane;
}

#define EMU_BUILTIN_SHUFFLE(name)                             \
  template <typename T>                                       \
  EMU_INLINE T __metal_simd_##name(T value, ushort operand) { \
    return metal::simd_##name(value, operand);                \
  }
EMU_BUILTIN_SHUFFLE(broadcast)
EMU_BUILTIN_SHUFFLE(shuffle)
EMU_BUILTIN_SHUFFLE(shuffle_down)
EMU_BUILTIN_SHUFFLE(shuffle_rotate_down)
EMU_BUILTIN_SHUFFLE(shuffle_rotate_up)
EMU_BUILTIN_SHUFFLE(shuffle_up)
EMU_BUILTIN_SHUFFLE(shuffle_xor)
#undef EMU_BUILTIN_SHUFFLE

template <typename T>
EMU_INLINE T __metal_simd_shuffle_and_fill_up(T value, T fill, ushort delta, ushort) {
  return metal::simd_shuffle_and_fill_up(value, fill, delta);
}
template <typename T>
EMU_INLINE T __metal_simd_shuffle_and_fill_down(T value, T fill, ushort delta, ushort) {
  return metal::simd_shuffle_and_fill_down(value, fill, delta);
}

#define EMU_BUILTIN_REDUCE(name)              \
  template <typename T>                       \
  EMU_INLINE T __metal_simd_##name(T value) { \
    return metal::simd_##name(value);         \
  }
EMU_BUILTIN_REDUCE(sum)
EMU_BUILTIN_REDUCE(product)
EMU_BUILTIN_REDUCE(max)
EMU_BUILTIN_REDUCE(min)
EMU_BUILTIN_REDUCE(prefix_inclusive_sum)
EMU_BUILTIN_REDUCE(prefix_exclusive_sum)
EMU_BUILTIN_REDUCE(prefix_inclusive_product)
EMU_BUILTIN_REDUCE(prefix_exclusive_product)
#undef EMU_BUILTIN_REDUCE

// Of bits, whatever their type.
EMU_INLINE float __metal_simd_xor(float value) {
  return as_type<float>(metal::simd_xor(as_type<uint>(value)));
}
