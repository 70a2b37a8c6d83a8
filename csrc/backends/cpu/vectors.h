#pragma once

// Vectors of float32 in the compiler's own vector types, which every instruction set lowers to what it has. A source
// that includes this is compiled once for each instruction set, with TESSL_CPU_ISA naming it. All it defines or calls
// must live in that namespace: an inline function shared between them (one of std, say) would be linked from any of
// them, and could reach a CPU that lacks its instructions.

#include <cstdint>
#include <cstring>

#include "backends/cpu/element.h"

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#define TESSL_INLINE [[gnu::always_inline]] static inline

namespace tessl::cpu::TESSL_CPU_ISA {

#if defined(__AVX512F__)
constexpr int lanes = 16;
#elif defined(__AVX__)
constexpr int lanes = 8;
#else
constexpr int lanes = 4;
#endif

typedef float Floats __attribute__((vector_size(lanes * 4)));
typedef int32_t Ints __attribute__((vector_size(lanes * 4)));
typedef uint32_t Words __attribute__((vector_size(lanes * 4)));
typedef double Doubles __attribute__((vector_size(lanes * 8)));
typedef int64_t Longs __attribute__((vector_size(lanes * 8)));
typedef uint16_t Halves __attribute__((vector_size(lanes * 2)));

TESSL_INLINE Floats splat(float x) {
  return x - Floats{};
}

template <typename Vector>
TESSL_INLINE Vector read(const void* source) {
  Vector x;
  std::memcpy(&x, source, sizeof(x));
  return x;
}

template <typename Vector>
TESSL_INLINE void write(void* target, Vector x) {
  std::memcpy(target, &x, sizeof(x));
}

TESSL_INLINE Floats magnitude(Floats x) {
  return (Floats)((Words)x & 0x7fffffffu);
}

// By halves: one lane after the other would wait for each addition.
TESSL_INLINE float sum_lanes(Floats x) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)x);
#else
#if defined(__AVX__)
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128((__m256)x), _mm256_extractf128_ps((__m256)x, 1));
#else
  const Floats four = x;
#endif
  return (four[0] + four[2]) + (four[1] + four[3]);
#endif
}

// Of numbers: what a NaN gives is not said.
TESSL_INLINE float largest_lane(Floats x) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)x);
#else
  for (int half = lanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) {
      x[i] = x[i] < x[i + half] ? x[i + half] : x[i];
    }
  }
  return x[0];
#endif
}

// GCC 12 takes four instructions for a conversion that the CPU has as one.
TESSL_INLINE Words widen(Halves h) {
#if defined(__AVX512F__)
  return (Words)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)h);
#elif defined(__AVX2__)
  return (Words)_mm256_cvtepu16_epi32((__m128i)h);
#else
  return __builtin_convertvector(h, Words);
#endif
}

// float16 and bfloat16 as storage: `from_bits` is exact; `to_bits` rounds to nearest, ties to even, NaN stays NaN.
struct Float16 {
  uint16_t bits;

#if defined(__AVX512F__)
  TESSL_INLINE Floats from_bits(Halves h) {
    return (Floats)_mm512_maskz_cvtph_ps(0xffff, (__m256i)h);
  }
  TESSL_INLINE Halves to_bits(Floats x) {
    return (Halves)_mm512_maskz_cvtps_ph(0xffff, (__m512)x, _MM_FROUND_TO_NEAREST_INT);
  }
#elif defined(__F16C__)
  TESSL_INLINE Floats from_bits(Halves h) {
    return (Floats)_mm256_cvtph_ps((__m128i)h);
  }
  TESSL_INLINE Halves to_bits(Floats x) {
    return (Halves)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT);
  }
#elif defined(__ARM_NEON)
  TESSL_INLINE Floats from_bits(Halves h) {
    return (Floats)vcvt_f32_f16(vreinterpret_f16_u16((uint16x4_t)h));
  }
  TESSL_INLINE Halves to_bits(Floats x) {
    return (Halves)vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)x));
  }
#else
  // The exponent moves from bias 15 to 127; a denormal is exact as the difference of two normal numbers.
  TESSL_INLINE Floats from_bits(Halves h) {
    const Words wide = widen(h);
    const Words magnitude = (wide & 0x7fffu) << 13;
    const Words normal = magnitude + (112u << 23);
    const Words denormal = (Words)((Floats)(magnitude + (113u << 23)) - 0x1p-14f);
    const Words special = magnitude | 0x7f800000u;
    const Words value = magnitude < (1u << 23) ? denormal : magnitude < (31u << 23) ? normal : special;
    return (Floats)(value | (wide & 0x8000u) << 16);
  }
  // Adding 0.5 to a number below 2^-14 leaves its value in steps of 2^-24, the spacing of denormals, rounded by the
  // FPU. The carry of rounding a normal number runs on into the exponent, up to infinity.
  TESSL_INLINE Halves to_bits(Floats x) {
    const Words bits = (Words)x;
    const Words magnitude = bits & 0x7fffffffu;
    const Words denormal = (Words)((Floats)magnitude + 0.5f) - (126u << 23);
    const Words normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    const Words special = magnitude > (255u << 23) ? (0x7e00u | (magnitude >> 13 & 0x1ffu)) : Words{} + 0x7c00u;
    const Words value = magnitude < (113u << 23) ? denormal : magnitude < (143u << 23) ? normal : special;
    return __builtin_convertvector(value | (bits >> 16 & 0x8000u), Halves);
  }
#endif
};

struct BFloat16 {
  uint16_t bits;

  TESSL_INLINE Floats from_bits(Halves h) {
    return (Floats)(widen(h) << 16);
  }
  TESSL_INLINE Halves to_bits(Floats x) {
    const Words bits = (Words)x;
    const Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const Words quiet_nan = (bits >> 16) | 0x40u;
    return __builtin_convertvector(x == x ? rounded : quiet_nan, Halves);
  }
};

template <typename T>
TESSL_INLINE Floats load(const T* source) {
  return T::from_bits(read<Halves>(source));
}
TESSL_INLINE Floats load(const float* source) {
  return read<Floats>(source);
}

// The first `count` lanes, zeros in the others.
template <typename T>
TESSL_INLINE Floats load_first(const T* source, int64_t count) {
  T padded[lanes] = {};
  std::memcpy(padded, source, static_cast<size_t>(count) * sizeof(T));
  return load(padded);
}

template <typename T>
TESSL_INLINE void store(T* target, Floats x) {
  write(target, T::to_bits(x));
}
TESSL_INLINE void store(float* target, Floats x) {
  write(target, x);
}

// Calls f(T{}) with the storage type of an element.
template <typename Function>
TESSL_INLINE void with_type(Element element, Function f) {
  switch (element) {
    case Element::float32:
      return f(float{});
    case Element::float16:
      return f(Float16{});
    case Element::bfloat16:
      return f(BFloat16{});
  }
}

} // namespace tessl::cpu::TESSL_CPU_ISA
