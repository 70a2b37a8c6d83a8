#pragma once

#include <nanobind/nanobind.h>

#include <mlx/dtype.h>

#include <bit>
#include <stdexcept>
#include <string>
#include <tuple>

#include "launch/plan.h"

namespace tessl {

inline std::tuple<uint32_t, uint32_t, uint32_t> size_tuple(const Size3& size) {
  return {size.x, size.y, size.z};
}

inline mlx::core::Dtype parse_dtype(const std::string& name) {
  if (name == "float32") {
    return mlx::core::float32;
  }
  if (name == "float16") {
    return mlx::core::float16;
  }
  if (name == "bfloat16") {
    return mlx::core::bfloat16;
  }
  throw std::invalid_argument("[mlx_tessl.plan] dtype is '" + name + "'; it must be float32, float16 or bfloat16");
}

// {index: value} of a launch's function constants.
template <typename Constants>
nanobind::dict constants_dict(const Constants& constants) {
  nanobind::dict values;
  for (const auto& constant : constants) {
    nanobind::object value;
    switch (constant.type) {
      case FunctionConstant::Type::boolean:
        value = nanobind::cast(constant.bits != 0);
        break;
      case FunctionConstant::Type::int32:
        value = nanobind::cast(static_cast<int32_t>(constant.bits));
        break;
      case FunctionConstant::Type::float32:
        value = nanobind::cast(std::bit_cast<float>(constant.bits));
        break;
    }
    values[nanobind::cast(constant.index)] = value;
  }
  return values;
}

} // namespace tessl
