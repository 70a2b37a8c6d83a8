#pragma once

#include "vector.h"

namespace metal {

template <typename T>
  requires(is_integral_v<T>)
constexpr T popcount(T x) {
  return static_cast<T>(__builtin_popcountll(static_cast<make_unsigned_t<T>>(x)));
}

template <typename T>
  requires(is_integral_v<T>)
constexpr T clz(T x) {
  constexpr int bits = 8 * sizeof(T);
  const auto u = static_cast<make_unsigned_t<T>>(x);
  return static_cast<T>(u == 0 ? bits : __builtin_clzll(u) - (64 - bits));
}

template <typename T>
  requires(is_integral_v<T>)
constexpr T ctz(T x) {
  return static_cast<T>(x == 0 ? 8 * sizeof(T) : __builtin_ctzll(static_cast<make_unsigned_t<T>>(x)));
}

constexpr uint reverse_bits(uint x) {
  return __builtin_bitreverse32(x);
}
constexpr ushort reverse_bits(ushort x) {
  return __builtin_bitreverse16(x);
}

template <typename T>
  requires(is_integral_v<T>)
constexpr T rotate(T x, T count) {
  constexpr unsigned bits = 8 * sizeof(T);
  const auto u = static_cast<make_unsigned_t<T>>(x);
  const unsigned n = static_cast<unsigned>(count) % bits;
  return static_cast<T>(n == 0 ? u : (u << n) | (u >> (bits - n)));
}

template <typename T>
  requires(is_integral_v<T>)
constexpr T mulhi(T a, T b) {
  return static_cast<T>((static_cast<__int128>(a) * static_cast<__int128>(b)) >> (8 * sizeof(T)));
}

template <typename T>
  requires(is_integral_v<T>)
constexpr T absdiff(T a, T b) {
  return a < b ? b - a : a - b;
}

// Bits [offset, offset + count) of x; a signed type extends the sign.
template <typename T>
  requires(is_integral_v<T>)
constexpr T extract_bits(T x, uint offset, uint count) {
  constexpr uint bits = 8 * sizeof(T);
  if (count == 0) {
    return 0;
  }
  const auto u = static_cast<make_unsigned_t<T>>(x);
  return static_cast<T>(static_cast<T>(u << (bits - offset - count)) >> (bits - count));
}

template <typename T>
  requires(is_integral_v<T>)
constexpr T insert_bits(T base, T insert, uint offset, uint count) {
  constexpr uint bits = 8 * sizeof(T);
  using U = make_unsigned_t<T>;
  const U ones = count >= bits ? static_cast<U>(~U(0)) : static_cast<U>((U(1) << count) - 1);
  const U mask = static_cast<U>(ones << offset);
  return static_cast<T>((static_cast<U>(base) & ~mask) | ((static_cast<U>(insert) << offset) & mask));
}

} // namespace metal
