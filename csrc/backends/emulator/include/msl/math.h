#pragma once

#include "../runtime/machine.h"
#include "vector.h"

namespace emu {

// float(x * 2^ulps noise) for fast:: functions: the error that a launch asks for, different at each value.
inline float with_noise(float x) {
  const float ulps = machine->ulp_noise;
  if (ulps == 0 || !__builtin_isfinite(x)) {
    return x;
  }
  uint64_t h = __builtin_bit_cast(uint32_t, x) * 0x9e3779b97f4a7c15ull + machine->seed;
  h = (h ^ (h >> 31)) * 0xbf58476d1ce4e5b9ull;
  const float unit = static_cast<float>(static_cast<int32_t>(h >> 32)) * 0x1p-31f; // in [-1, 1)
  const int32_t steps = static_cast<int32_t>(__builtin_rintf(unit * ulps));
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  const uint32_t moved = (bits & 0x7fffffffu) < static_cast<uint32_t>(steps < 0 ? -steps : 0) ? bits : bits + steps;
  return __builtin_bit_cast(float, moved);
}

// Nearest half of a double, rounded once: through a float rounded to odd.
inline half half_from_double(double x) {
  float f = static_cast<float>(x);
  if (__builtin_isfinite(f) && static_cast<double>(f) != x) {
    uint32_t bits = __builtin_bit_cast(uint32_t, f);
    const bool away_from_zero = __builtin_fabs(static_cast<double>(f)) > __builtin_fabs(x);
    bits = (bits - (away_from_zero ? 1 : 0)) | 1;
    f = __builtin_bit_cast(float, bits);
  }
  return static_cast<half>(f);
}

constexpr double pi = 3.14159265358979323846;

} // namespace emu

namespace metal {

// name(x) for float; half is computed in float and rounded; an integer becomes a float; vectors by component.
#define EMU_UNARY(name, expression)                             \
  inline float name(float x) {                                  \
    return expression;                                          \
  }                                                             \
  inline half name(half x) {                                    \
    return static_cast<half>(name(static_cast<float>(x)));      \
  }                                                             \
  template <typename T>                                         \
    requires(is_integral_v<T>)                                  \
  inline float name(T x) {                                      \
    return name(static_cast<float>(x));                         \
  }                                                             \
  template <typename T, int N>                                  \
  inline vec<T, N> name(const vec<T, N>& x) {                   \
    return make_vec<T, N>([&](int i) { return name(x.v[i]); }); \
  }

#define EMU_BINARY(name, expression)                                              \
  inline float name(float x, float y) {                                           \
    return expression;                                                            \
  }                                                                               \
  inline half name(half x, half y) {                                              \
    return static_cast<half>(name(static_cast<float>(x), static_cast<float>(y))); \
  }                                                                               \
  template <typename T, int N>                                                    \
  inline vec<T, N> name(const vec<T, N>& x, const vec<T, N>& y) {                 \
    return make_vec<T, N>([&](int i) { return name(x.v[i], y.v[i]); });           \
  }

#define EMU_TRANSCENDENTALS(E)                                        \
  EMU_UNARY(acos, E(__builtin_acosf(x)))                              \
  EMU_UNARY(acosh, E(__builtin_acoshf(x)))                            \
  EMU_UNARY(asin, E(__builtin_asinf(x)))                              \
  EMU_UNARY(asinh, E(__builtin_asinhf(x)))                            \
  EMU_UNARY(atan, E(__builtin_atanf(x)))                              \
  EMU_UNARY(atanh, E(__builtin_atanhf(x)))                            \
  EMU_UNARY(cos, E(__builtin_cosf(x)))                                \
  EMU_UNARY(cosh, E(__builtin_coshf(x)))                              \
  EMU_UNARY(cospi, E(static_cast<float>(__builtin_cos(emu::pi * x)))) \
  EMU_UNARY(exp, E(__builtin_expf(x)))                                \
  EMU_UNARY(exp2, E(__builtin_exp2f(x)))                              \
  EMU_UNARY(exp10, E(__builtin_powf(10.0f, x)))                       \
  EMU_UNARY(log, E(__builtin_logf(x)))                                \
  EMU_UNARY(log2, E(__builtin_log2f(x)))                              \
  EMU_UNARY(log10, E(__builtin_log10f(x)))                            \
  EMU_UNARY(sin, E(__builtin_sinf(x)))                                \
  EMU_UNARY(sinh, E(__builtin_sinhf(x)))                              \
  EMU_UNARY(sinpi, E(static_cast<float>(__builtin_sin(emu::pi * x)))) \
  EMU_UNARY(tan, E(__builtin_tanf(x)))                                \
  EMU_UNARY(tanpi, E(static_cast<float>(__builtin_tan(emu::pi * x)))) \
  EMU_UNARY(sqrt, E(__builtin_sqrtf(x)))                              \
  EMU_UNARY(rsqrt, E(1.0f / __builtin_sqrtf(x)))                      \
  EMU_BINARY(atan2, E(__builtin_atan2f(x, y)))                        \
  EMU_BINARY(pow, E(__builtin_powf(x, y)))                            \
  EMU_BINARY(powr, E(__builtin_powf(x, y)))                           \
  EMU_BINARY(divide, E(x / y))                                        \
  inline float sincos(float x, float& cosine) {                       \
    cosine = cos(x);                                                  \
    return sin(x);                                                    \
  }

#define EMU_EXACT_FUNCTIONS                                                  \
  EMU_UNARY(ceil, __builtin_ceilf(x))                                        \
  EMU_UNARY(floor, __builtin_floorf(x))                                      \
  EMU_UNARY(rint, __builtin_rintf(x))                                        \
  EMU_UNARY(round, __builtin_roundf(x))                                      \
  EMU_UNARY(trunc, __builtin_truncf(x))                                      \
  EMU_UNARY(fabs, __builtin_fabsf(x))                                        \
  EMU_UNARY(fract, __builtin_fminf(x - __builtin_floorf(x), 0x1.fffffep-1f)) \
  EMU_BINARY(fmod, __builtin_fmodf(x, y))                                    \
  EMU_BINARY(fdim, __builtin_fdimf(x, y))                                    \
  EMU_BINARY(fmin, __builtin_fminf(x, y))                                    \
  EMU_BINARY(fmax, __builtin_fmaxf(x, y))                                    \
  EMU_BINARY(copysign, __builtin_copysignf(x, y))                            \
  EMU_BINARY(nextafter, __builtin_nextafterf(x, y))

#define EMU_ROUNDED(value) (value)
#define EMU_NOISY(value) emu::with_noise(value)

EMU_EXACT_FUNCTIONS
EMU_TRANSCENDENTALS(EMU_ROUNDED)
EMU_UNARY(tanh, __builtin_tanhf(x))

namespace precise {
EMU_EXACT_FUNCTIONS
EMU_TRANSCENDENTALS(EMU_ROUNDED)
EMU_UNARY(tanh, __builtin_tanhf(x))
} // namespace precise

namespace fast {
EMU_EXACT_FUNCTIONS
EMU_TRANSCENDENTALS(EMU_NOISY)
// The fast variant gives NaN far from 0; callers clamp.
EMU_UNARY(tanh, __builtin_fabsf(x) > 10.0f ? __builtin_nanf("") : EMU_NOISY(__builtin_tanhf(x)))
} // namespace fast

#undef EMU_UNARY
#undef EMU_BINARY

inline float fma(float a, float b, float c) {
  return __builtin_fmaf(a, b, c);
}
inline half fma(half a, half b, half c) {
  return emu::half_from_double(static_cast<double>(a) * static_cast<double>(b) + static_cast<double>(c));
}
template <typename T, int N>
inline vec<T, N> fma(const vec<T, N>& a, const vec<T, N>& b, const vec<T, N>& c) {
  return make_vec<T, N>([&](int i) { return fma(a.v[i], b.v[i], c.v[i]); });
}
namespace precise {
using metal::fma;
}
namespace fast {
using metal::fma;
}

template <typename T>
  requires(is_arithmetic_v<T>)
constexpr T abs(T x) {
  if constexpr (is_floating_point_v<T>) {
    return static_cast<T>(__builtin_fabsf(static_cast<float>(x)));
  } else if constexpr (is_unsigned_v<T>) {
    return x;
  } else {
    return x < 0 ? static_cast<T>(-x) : x;
  }
}
template <typename T, int N>
constexpr vec<T, N> abs(const vec<T, N>& x) {
  return make_vec<T, N>([&](int i) { return abs(x.v[i]); });
}

// A NaN loses against a number.
#define EMU_EXTREME(name, op)                                                      \
  template <typename T>                                                            \
    requires(is_arithmetic_v<T>)                                                   \
  constexpr T name(T a, T b) {                                                     \
    if constexpr (is_floating_point_v<T>) {                                        \
      return (a op b) || b != b ? a : b;                                           \
    } else {                                                                       \
      return a op b ? a : b;                                                       \
    }                                                                              \
  }                                                                                \
  template <typename T, typename U>                                                \
    requires(is_integral_v<T> && is_integral_v<U> && !is_same_v<T, U>)             \
  constexpr common_type_t<T, U> name(T a, U b) {                                   \
    using C = common_type_t<T, U>;                                                 \
    return name(static_cast<C>(a), static_cast<C>(b));                             \
  }                                                                                \
  template <typename T, int N>                                                     \
  constexpr vec<T, N> name(const vec<T, N>& a, const vec<T, N>& b) {               \
    return make_vec<T, N>([&](int i) { return name(a.v[i], b.v[i]); });            \
  }                                                                                \
  template <typename T, int N, typename S>                                         \
    requires(is_arithmetic_v<S>)                                                   \
  constexpr vec<T, N> name(const vec<T, N>& a, S b) {                              \
    return make_vec<T, N>([&](int i) { return name(a.v[i], static_cast<T>(b)); }); \
  }                                                                                \
  template <typename T>                                                            \
  constexpr T name##3(T a, T b, T c) {                                             \
    return name(a, name(b, c));                                                    \
  }                                                                                \
  namespace precise {                                                              \
  using metal::name;                                                               \
  }                                                                                \
  namespace fast {                                                                 \
  using metal::name;                                                               \
  }
EMU_EXTREME(min, <)
EMU_EXTREME(max, >)
#undef EMU_EXTREME

template <typename T>
constexpr T median3(T a, T b, T c) {
  return max(min(a, b), min(max(a, b), c));
}
template <typename T>
constexpr T clamp(T x, T low, T high) {
  return min(max(x, low), high);
}
template <typename T, int N, typename S>
  requires(is_arithmetic_v<S>)
constexpr vec<T, N> clamp(const vec<T, N>& x, S low, S high) {
  return min(max(x, low), high);
}
template <typename T>
constexpr T saturate(T x) {
  return clamp(x, static_cast<T>(0), static_cast<T>(1));
}
template <typename T, typename S>
constexpr T mix(T x, T y, S a) {
  return x + (y - x) * a;
}
template <typename T>
constexpr T step(T edge, T x) {
  return x < edge ? static_cast<T>(0) : static_cast<T>(1);
}
template <typename T>
  requires(is_arithmetic_v<T>)
constexpr T sign(T x) {
  return static_cast<T>((x > static_cast<T>(0)) - (x < static_cast<T>(0)));
}
template <typename T>
constexpr T select(T a, T b, bool second) {
  return second ? b : a;
}
template <typename T, int N>
constexpr vec<T, N> select(const vec<T, N>& a, const vec<T, N>& b, const vec<bool, N>& second) {
  return make_vec<T, N>([&](int i) { return second.v[i] ? b.v[i] : a.v[i]; });
}

#define EMU_CLASSIFY(name, builtin)                                \
  template <typename T>                                            \
    requires(is_floating_point_v<T>)                               \
  constexpr bool name(T x) {                                       \
    return builtin(static_cast<float>(x));                         \
  }                                                                \
  template <typename T, int N>                                     \
  constexpr vec<bool, N> name(const vec<T, N>& x) {                \
    return make_vec<bool, N>([&](int i) { return name(x.v[i]); }); \
  }
EMU_CLASSIFY(isnan, __builtin_isnan)
EMU_CLASSIFY(isinf, __builtin_isinf)
EMU_CLASSIFY(isfinite, __builtin_isfinite)
EMU_CLASSIFY(isnormal, __builtin_isnormal)
EMU_CLASSIFY(signbit, __builtin_signbit)
#undef EMU_CLASSIFY

inline float ldexp(float x, int exponent) {
  return __builtin_ldexpf(x, exponent);
}
inline half ldexp(half x, int exponent) {
  return static_cast<half>(__builtin_ldexpf(static_cast<float>(x), exponent));
}
inline float frexp(float x, int& exponent) {
  return __builtin_frexpf(x, &exponent);
}
inline float modf(float x, float& whole) {
  return __builtin_modff(x, &whole);
}
inline int ilogb(float x) {
  return __builtin_ilogbf(x);
}

template <typename T, int N>
constexpr T dot(const vec<T, N>& a, const vec<T, N>& b) {
  T sum = static_cast<T>(0);
  for (int i = 0; i < N; ++i) {
    sum += a.v[i] * b.v[i];
  }
  return sum;
}
template <typename T, int N>
inline T length(const vec<T, N>& a) {
  return sqrt(dot(a, a));
}
template <typename T, int N>
constexpr T length_squared(const vec<T, N>& a) {
  return dot(a, a);
}
template <typename T, int N>
inline vec<T, N> normalize(const vec<T, N>& a) {
  return a * rsqrt(dot(a, a));
}

} // namespace metal
