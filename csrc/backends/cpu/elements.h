#pragma once

#include <cstdint>

#include <mlx/dtype.h>

#include "backends/cpu/element.h"

namespace tessl::cpu {

// Of float32, float16 or bfloat16.
inline Element element_of(mlx::core::Dtype dtype) {
  if (dtype == mlx::core::float32) {
    return Element::float32;
  }
  return dtype == mlx::core::float16 ? Element::float16 : Element::bfloat16;
}

inline int64_t size_of(Element element) {
  return element == Element::float32 ? 4 : 2;
}

// `data` moved on by `count` elements.
inline const void* advance(const void* data, Element element, int64_t count) {
  return static_cast<const char*>(data) + count * size_of(element);
}

inline void* advance(void* data, Element element, int64_t count) {
  return static_cast<char*>(data) + count * size_of(element);
}

} // namespace tessl::cpu
