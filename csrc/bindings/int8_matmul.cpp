#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>

#include "bindings/bindings.h"
#include "bindings/plan_values.h"
#include "launch/device_profile.h"
#include "ops/activation.h"
#include "ops/int8_matmul.h"
#include "ops/int8_matmul_plan.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tessl {

void bind_int8_matmul(nb::module_& m) {
  m.def(
      "int8_matmul",
      &int8_matmul,
      "a"_a,
      "b"_a,
      nb::kw_only(),
      "scale_a"_a.none() = nb::none(),
      "scale_b"_a.none() = nb::none(),
      "bias"_a.none() = nb::none(),
      "activation"_a.none() = nb::none(),
      "dtype"_a.none() = nb::none(),
      "stream"_a.none() = nb::none()
  );
  auto plan = nb::cast<nb::module_>(m.attr("plan"));
  plan.def(
      "int8_matmul",
      [](const std::string& dtype,
         const Operand& a,
         const Operand& b,
         const std::optional<Operand>& scale_a,
         const std::optional<Operand>& bias,
         const std::optional<Operand>& scale_b,
         const std::optional<std::string>& activation,
         const std::string& gpu,
         const std::string& macos) {
        const auto out = dtype == "int32" ? mlx::core::int32 : parse_dtype(dtype);
        const auto parsed = parse_activation("mlx_tessl.plan", activation);
        const auto problem = make_int8_matmul_problem(out, a, b, scale_a, bias, scale_b, parsed);
        return plan_int8_matmul(problem, make_device_profile(gpu, macos));
      },
      "dtype"_a,
      "a"_a,
      "b"_a,
      nb::kw_only(),
      "scale_a"_a.none() = nb::none(),
      "bias"_a.none() = nb::none(),
      "scale_b"_a.none() = nb::none(),
      "activation"_a.none() = nb::none(),
      "gpu"_a,
      "macos"_a
  );
}

} // namespace tessl
