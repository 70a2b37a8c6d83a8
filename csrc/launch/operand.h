#pragma once

#include <cstdint>

#include <mlx/array.h>

namespace tessl {

// What planning may know of an array: never its data.
struct Operand {
  mlx::core::Shape shape;
  mlx::core::Strides strides; // elements
  int64_t offset = 0;         // bytes from the start of its buffer

  static Operand of(const mlx::core::array& array) {
    return {array.shape(), array.strides(), array.offset()};
  }
};

} // namespace tessl
