#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "bindings/bindings.h"
#include "bindings/plan_values.h"
#include "launch/device_profile.h"
#include "ops/activation.h"
#include "ops/quantization.h"
#include "ops/quantized_embedding_plan.h"
#include "ops/quantized_matmul_plan.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tessl {
namespace {

constexpr const char* op = "mlx_tessl.plan";

struct QuantizedMatmulCall {
  QuantizedMatmulProblem problem;
  DeviceProfile device;
};

const char* to_string(QuantizedKernelKind kind) {
  switch (kind) {
    case QuantizedKernelKind::vector:
      return "vector";
    case QuantizedKernelKind::portable:
      return "portable";
    case QuantizedKernelKind::direct:
      return "direct";
    case QuantizedKernelKind::staged:
      return "staged";
    case QuantizedKernelKind::native:
      return "native";
  }
  return "unknown";
}

void bind_quantized_matmul_plan(nb::module_& plan) {
  nb::class_<QuantizedMatmulCall>(plan, "QuantizedMatmul", "A call of quantized_matmul on a device.")
      .def(
          "__init__",
          [](QuantizedMatmulCall* self,
             const std::string& dtype,
             const Operand& x,
             const Operand& w,
             const Operand& scales,
             const std::optional<Operand>& biases,
             const std::optional<Operand>& bias,
             bool transpose,
             const std::string& mode,
             std::optional<int> group_size,
             std::optional<int> bits,
             const std::optional<std::string>& activation,
             bool relaxed,
             const std::string& gpu,
             const std::string& macos) {
            new (self) QuantizedMatmulCall{
                make_quantized_matmul_problem(
                    parse_dtype(dtype),
                    x,
                    w,
                    scales,
                    biases,
                    bias,
                    parse_quantization(op, mode, group_size, bits),
                    transpose,
                    parse_activation(op, activation),
                    relaxed
                ),
                make_device_profile(gpu, macos)
            };
          },
          "dtype"_a,
          "x"_a,
          "w"_a,
          "scales"_a,
          "biases"_a.none() = nb::none(),
          nb::kw_only(),
          "bias"_a.none() = nb::none(),
          "transpose"_a = true,
          "mode"_a = "affine",
          "group_size"_a.none() = nb::none(),
          "bits"_a.none() = nb::none(),
          "activation"_a.none() = nb::none(),
          "relaxed"_a = false,
          "gpu"_a,
          "macos"_a
      )
      .def("plan", [](const QuantizedMatmulCall& call) { return plan_quantized_matmul(call.problem, call.device); })
      .def_prop_ro(
          "kind",
          [](const QuantizedMatmulCall& call) {
            return to_string(choose_quantized_kernel(call.problem, call.device).kind);
          }
      )
      .def_prop_ro("reason", [](const QuantizedMatmulCall& call) {
        return choose_quantized_kernel(call.problem, call.device).reason;
      });
}

void bind_quantized_embedding_plan(nb::module_& plan) {
  plan.def(
      "quantized_embedding",
      [](const std::string& dtype,
         int64_t ids,
         const Operand& w,
         const Operand& scales,
         const std::optional<Operand>& biases,
         const std::string& mode,
         std::optional<int> group_size,
         std::optional<int> bits) {
        const auto quantization = parse_quantization(op, mode, group_size, bits);
        return plan_quantized_embedding({parse_dtype(dtype), quantization, ids, w, scales, biases});
      },
      "dtype"_a,
      "ids"_a,
      "w"_a,
      "scales"_a,
      "biases"_a.none() = nb::none(),
      nb::kw_only(),
      "mode"_a = "affine",
      "group_size"_a.none() = nb::none(),
      "bits"_a.none() = nb::none()
  );
}

} // namespace

void bind_quantized_plans(nb::module_& m) {
  auto plan = nb::cast<nb::module_>(m.attr("plan"));
  bind_quantized_matmul_plan(plan);
  bind_quantized_embedding_plan(plan);
}

} // namespace tessl
