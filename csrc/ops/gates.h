#pragma once

#include <string>

#include <mlx/array.h>
#include <mlx/utils.h>

namespace mx = mlx::core;

namespace tessl {

// x sigmoid(gate).
mx::array sigmoid_gate(const mx::array& x, const mx::array& gate, mx::StreamOrDevice stream);

// silu(gate) up.
mx::array swiglu(const mx::array& gate, const mx::array& up, mx::StreamOrDevice stream);

// gelu(gate) up; approximate is none (by erf) or tanh.
mx::array geglu(const mx::array& gate, const mx::array& up, const std::string& approximate, mx::StreamOrDevice stream);

} // namespace tessl
