#pragma once

#include "../msl/traits.h"
#include "../runtime/machine.h"

namespace emu {

inline __attribute__((visibility("hidden"))) ConstantValue constant_values[max_constants];

// A [[function_constant(Index)]]: its value belongs to the launch, not to the library.
template <typename T, int Index>
struct function_constant {
  static_assert(Index >= 0 && Index < static_cast<int>(max_constants));
  static constexpr int index = Index;

  EMU_INLINE operator T() const {
    T value;
    __builtin_memcpy(&value, &constant_values[Index].bits, sizeof(T));
    return value;
  }
};

// A constant computed from function constants.
template <typename T>
struct derived_constant {
  T (*compute)();

  EMU_INLINE operator T() const {
    return compute();
  }
};

template <typename T>
constexpr ConstantType constant_type() {
  using metal::is_same_v;
  if constexpr (is_same_v<T, bool>) {
    return ConstantType::boolean;
  } else if constexpr (is_same_v<T, float>) {
    return ConstantType::float32;
  } else if constexpr (is_same_v<T, half>) {
    return ConstantType::half;
  } else if constexpr (sizeof(T) == 4) {
    return metal::is_signed_v<T> ? ConstantType::int32 : ConstantType::uint32;
  } else if constexpr (sizeof(T) == 2) {
    return metal::is_signed_v<T> ? ConstantType::int16 : ConstantType::uint16;
  } else if constexpr (sizeof(T) == 1) {
    return metal::is_signed_v<T> ? ConstantType::int8 : ConstantType::uint8;
  } else {
    return metal::is_signed_v<T> ? ConstantType::int64 : ConstantType::uint64;
  }
}

} // namespace emu

namespace metal {

template <typename T, int Index>
bool is_function_constant_defined(const emu::function_constant<T, Index>&) {
  return emu::constant_values[Index].defined;
}

} // namespace metal
