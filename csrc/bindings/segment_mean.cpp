#include <nanobind/nanobind.h>
#include <nanobind/stl/variant.h>

#include "bindings/bindings.h"
#include "ops/segment_mean.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tessl {

void bind_segment_mean(nb::module_& m) {
  m.def("segment_mean", &segment_mean, "x"_a, "starts"_a, "lengths"_a, nb::kw_only(), "stream"_a.none() = nb::none());
}

} // namespace tessl
