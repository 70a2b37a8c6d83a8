#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>

#include "bindings/bindings.h"
#include "bindings/plan_values.h"
#include "ops/sparse_max_pool.h"
#include "ops/sparse_max_pool_plan.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tessl {
namespace {

struct SparseMaxPoolCall {
  SparseMaxPoolProblem problem;
  DeviceProfile device;
};

void bind_plan(nb::module_& plan) {
  nb::class_<SparseMaxPoolCall>(plan, "SparseMaxPool", "A call of sparse_max_pool on a device.")
      .def(
          "__init__",
          [](SparseMaxPoolCall* self,
             const std::string& dtype,
             const Operand& hidden,
             const Operand& weight,
             const std::optional<Operand>& bias,
             const std::optional<Operand>& lengths,
             int activation,
             bool sums,
             bool relaxed,
             const std::string& gpu,
             const std::string& macos) {
            const auto function = static_cast<SparseActivation>(activation);
            new (self) SparseMaxPoolCall{
                {parse_dtype(dtype), hidden, weight, bias, lengths, function, sums, relaxed},
                make_device_profile(gpu, macos)
            };
          },
          "dtype"_a,
          "hidden"_a,
          "weight"_a,
          "bias"_a.none() = nb::none(),
          "lengths"_a.none() = nb::none(),
          nb::kw_only(),
          "activation"_a = 1,
          "sums"_a = false,
          "relaxed"_a = false,
          "gpu"_a,
          "macos"_a
      )
      .def("plan", [](const SparseMaxPoolCall& call) { return plan_sparse_max_pool(call.problem, call.device); })
      .def_prop_ro("tensorops_obstacle", [](const SparseMaxPoolCall& call) {
        return tensorops_obstacle(call.problem, call.device);
      });
}

} // namespace

void bind_sparse_max_pool(nb::module_& m) {
  m.def(
      "sparse_max_pool",
      &sparse_max_pool,
      "hidden"_a,
      "weight"_a,
      "bias"_a.none() = nb::none(),
      "lengths"_a.none() = nb::none(),
      nb::kw_only(),
      "activation"_a = "log1p_relu",
      "pooling"_a = "max",
      "precision"_a.none() = nb::none(),
      "stream"_a.none() = nb::none()
  );
  auto plan = nb::cast<nb::module_>(m.attr("plan"));
  bind_plan(plan);
}

} // namespace tessl
