#pragma once

#include <array>
#include <stdexcept>
#include <string>

#include <mlx/dtype.h>

#include "launch/kernel.h"

namespace tessl {

// The kernels `name_float32`, `name_float16` and `name_bfloat16` of a family.
class TypedKernels {
 public:
  TypedKernels(const std::string& name, const std::string& family, Capability capability = Capability::portable) {
    constexpr std::array dtypes{"_float32", "_float16", "_bfloat16"};
    for (size_t i = 0; i < dtypes.size(); ++i) {
      kernels_[i] = intern_kernel(name + dtypes[i], family, capability);
    }
  }

  const Kernel* of(mlx::core::Dtype dtype) const {
    if (dtype == mlx::core::float32) {
      return kernels_[0];
    }
    if (dtype == mlx::core::float16) {
      return kernels_[1];
    }
    if (dtype == mlx::core::bfloat16) {
      return kernels_[2];
    }
    throw std::runtime_error("[mlx_tessl] " + kernels_[0]->name + " has no twin of this dtype");
  }

 private:
  std::array<const Kernel*, 3> kernels_;
};

} // namespace tessl
