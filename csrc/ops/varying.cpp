#include "ops/varying.h"

namespace tessl {

std::vector<mx::array> chosen(const std::vector<mx::array>& arrays, const std::vector<int>& indices) {
  std::vector<mx::array> result;
  for (int i : indices) {
    result.push_back(arrays[i]);
  }
  return result;
}

std::function<std::vector<mx::array>(const std::vector<mx::array>&)> varying(
    std::function<std::vector<mx::array>(const std::vector<mx::array>&)> f,
    const std::vector<mx::array>& inputs,
    const std::vector<int>& indices
) {
  return [f = std::move(f), inputs, indices](const std::vector<mx::array>& x) {
    auto all = inputs;
    for (size_t i = 0; i < indices.size(); ++i) {
      all[indices[i]] = x[i];
    }
    return f(all);
  };
}

} // namespace tessl
