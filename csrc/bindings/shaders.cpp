#include <nanobind/nanobind.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "launch/device_profile.h"
#include "launch/self_check.h"
#include "launch/source.h"
#include "ops/tensorops_checks.h"

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
      [](const PythonProduct& product, int rows) {
        const auto call = [&](std::span<const float> a, std::span<const float> b) {
          return product({a.begin(), a.end()}, {b.begin(), b.end()});
        };
        const auto trust = check_product(call, rows);
        return std::pair(trust.trusted, trust.reason);
      },
      "product"_a,
      "rows"_a = self_check_rows,
      "Whether a product of [rows, 64] by [64, 32], row-contiguous float32, passes the self-check, and why or why not."
  );
  m.def(
      "tensorops_checks",
      [](const std::string& gpu, const std::string& macos) {
        const auto device = make_device_profile(gpu, macos);
        nb::list checks;
        for (const auto& check : tensorops_checks()) {
          if (runs_on(check, device)) {
            const SelfCheck values(check.rows);
            auto launch = check.make(values.a, values.b, check.rows, device);
            nb::list outputs;
            for (const auto& output : launch.outputs) {
              const auto& shape = output.shape();
              outputs.append(nb::make_tuple(std::vector<int>(shape.begin(), shape.end()), output.dtype()));
            }
            checks.append(
                nb::make_tuple(
                    check.name,
                    check.rows,
                    launch.plan,
                    launch.inputs,
                    outputs,
                    holds_kernel_of(launch.plan, check.capability)
                )
            );
          }
        }
        return checks;
      },
      "gpu"_a,
      "macos"_a,
      "The products by which a device's TensorOps kernels earn trust: name, rows, plan, inputs, shape and dtype of "
      "each "
      "output, and whether a kernel of the library in question is in the plan. The product ends the first output."
  );
}

} // namespace tessl
