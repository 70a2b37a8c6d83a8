#pragma once

#include <optional>
#include <string>

#include <mlx/utils.h>

#include "kernels/args/matmul.h"
#include "launch/operand.h"
#include "ops/op.h"

namespace tessl {

enum class Activation : int {
  none = MATMUL_ACTIVATION_NONE,
  relu = MATMUL_ACTIVATION_RELU,
  silu = MATMUL_ACTIVATION_SILU,
  gelu = MATMUL_ACTIVATION_GELU,
  gelu_tanh = MATMUL_ACTIVATION_GELU_TANH,
};

