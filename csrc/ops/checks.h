#pragma once

#include <string_view>
#include <vector>

#include <mlx/array.h>
#include <mlx/ops.h>
#include <mlx/utils.h>

#include "ops/refusal.h"

namespace mx = mlx::core;

namespace tessl {

// The dtype of the result, to which the operands are promoted.
inline mx::Dtype check_dtypes(std::string_view op, const std::vector<mx::array>& operands) {
  const auto dtype = mx::result_type(operands);
  if (dtype != mx::float32 && dtype != mx::float16 && dtype != mx::bfloat16) {
    refuse(op, "operands promote to ", dtype, "; they must promote to float32, float16 or bfloat16");
  }
  return dtype;
}

inline void check_integers(std::string_view op, const char* argument, const mx::array& x) {
  if (!mx::issubdtype(x.dtype(), mx::integer)) {
    refuse(op, argument, " has dtype ", x.dtype(), "; it must be of integers");
  }
}

inline void check_real(std::string_view op, const char* argument, const mx::array& x) {
  if (mx::issubdtype(x.dtype(), mx::complexfloating)) {
    refuse(op, argument, " has dtype ", x.dtype(), "; it must be real");
  }
}

// Integers as int32: what does not fit becomes the nearest that does, which lies beyond every array as well.
mx::array as_int32(const mx::array& x, mx::Stream s);

} // namespace tessl
