#pragma once

#include <functional>
#include <vector>

#include <mlx/array.h>

namespace mx = mlx::core;

namespace tessl {

// The arrays `indices`, in that order.
std::vector<mx::array> chosen(const std::vector<mx::array>& arrays, const std::vector<int>& indices);

// `f` as a function of its inputs `indices`, the others held fixed.
std::function<std::vector<mx::array>(const std::vector<mx::array>&)> varying(
    std::function<std::vector<mx::array>(const std::vector<mx::array>&)> f,
    const std::vector<mx::array>& inputs,
    const std::vector<int>& indices
);

} // namespace tessl
