#include <nanobind/nanobind.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "launch/self_check.h"
#include "launch/source.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tessl {

using PythonProduct = std::function<std::vector<float>(std::vector<float> a, std::vector<float> b)>;

void bind_shaders(nb::module_& m) {
  m.def(
      "flatten_shader",
      [](const std::string& kernels, const std::string& family) {
        auto source = flatten_shader(kernels, family);
        return std::pair(std::move(source.text), hex(source.hash));
      },
      "kernels"_a,
      "family"_a,
      "A shader family as one text without includes of ours, and the hash of that text."
  );
  m.def(
      "check_product",
      [](const PythonProduct& product) {
        const auto trust = check_product([&](std::span<const float> a, std::span<const float> b) {
          return product({a.begin(), a.end()}, {b.begin(), b.end()});
        });
        return std::pair(trust.trusted, trust.reason);
      },
      "product"_a,
      "Whether a product of [16, 64] by [64, 32], row-contiguous float32, passes the self-check, and why or why not."
  );
}

} // namespace tessl
