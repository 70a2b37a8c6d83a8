#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>

#include "bindings/bindings.h"
#include "ops/gates.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tessl {

void bind_gates(nb::module_& m) {
  m.def("sigmoid_gate", &sigmoid_gate, "x"_a, "gate"_a, nb::kw_only(), "stream"_a.none() = nb::none());
  m.def("swiglu", &swiglu, "gate"_a, "up"_a, nb::kw_only(), "stream"_a.none() = nb::none());
  m.def("geglu", &geglu, "gate"_a, "up"_a, nb::kw_only(), "approximate"_a = "tanh", "stream"_a.none() = nb::none());
}

} // namespace tessl
