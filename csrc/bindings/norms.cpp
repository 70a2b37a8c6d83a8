#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/variant.h>

#include "bindings/bindings.h"
#include "ops/norms.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tessl {

void bind_norms(nb::module_& m) {
  m.def(
      "rms_norm",
      &rms_norm,
      "x"_a,
      "weight"_a.none(),
      "eps"_a,
      nb::kw_only(),
      "residual"_a.none() = nb::none(),
      "weight_offset"_a = 0.0f,
      "stream"_a.none() = nb::none()
  );
  m.def(
      "layer_norm",
      &layer_norm,
      "x"_a,
      "weight"_a.none(),
      "bias"_a.none(),
      "eps"_a,
      nb::kw_only(),
      "residual"_a.none() = nb::none(),
      "stream"_a.none() = nb::none()
  );
  m.def(
      "gated_rms_norm",
      &gated_rms_norm,
      "x"_a,
      "gate"_a,
      "weight"_a,
      "eps"_a,
      nb::kw_only(),
      "stream"_a.none() = nb::none()
  );
}

} // namespace tessl
