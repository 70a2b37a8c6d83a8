#pragma once

#include <metal_stdlib>

// Four consecutive elements at a time. Conversions are by component: they are then the same for half and bfloat.

template <typename T>
inline metal::vec<T, 4> load4(device const T* p) {
  return *reinterpret_cast<device const metal::vec<T, 4>*>(p);
}

// The first `count` of four elements `stride` apart, zeros after them.
template <typename T>
inline metal::vec<T, 4> load4(device const T* p, int64_t stride, int count) {
  metal::vec<T, 4> values(T(0.0f));
  for (int i = 0; i < metal::min(count, 4); ++i) {
    values[i] = p[i * stride];
  }
  return values;
}

template <typename T>
inline void store4(device T* p, metal::vec<T, 4> values) {
  *reinterpret_cast<device metal::vec<T, 4>*>(p) = values;
}

template <typename T>
inline void store4(device T* p, metal::vec<T, 4> values, int count) {
  for (int i = 0; i < metal::min(count, 4); ++i) {
    p[i] = values[i];
  }
}

template <typename T>
inline float4 to_float4(metal::vec<T, 4> v) {
  return float4(float(v[0]), float(v[1]), float(v[2]), float(v[3]));
}

template <typename T>
inline metal::vec<T, 4> from_float4(float4 v) {
  return metal::vec<T, 4>(T(v[0]), T(v[1]), T(v[2]), T(v[3]));
}

template <typename To, typename From>
inline metal::vec<To, 4> convert4(metal::vec<From, 4> v) {
  return metal::vec<To, 4>(To(v[0]), To(v[1]), To(v[2]), To(v[3]));
}
