#include <nanobind/nanobind.h>
#include <nanobind/stl/variant.h>

#include "bindings/bindings.h"
#include "ops/reductions.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tessl {

void bind_reductions(nb::module_& m) {
  m.def("row_sum", &row_sum, "x"_a, nb::kw_only(), "stream"_a.none() = nb::none());
  m.def("row_max", &row_max, "x"_a, nb::kw_only(), "stream"_a.none() = nb::none());
  m.def("logsumexp", &logsumexp, "x"_a, nb::kw_only(), "stream"_a.none() = nb::none());
  m.def("softmax", &softmax, "x"_a, "axis"_a = -1, nb::kw_only(), "stream"_a.none() = nb::none());
  m.def("l2_normalize", &l2_normalize, "x"_a, "eps"_a, nb::kw_only(), "stream"_a.none() = nb::none());
}

} // namespace tessl
