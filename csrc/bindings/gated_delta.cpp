#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>

#include "bindings/bindings.h"
#include "ops/causal_conv1d.h"
#include "ops/gated_delta.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tessl {

void bind_gated_delta(nb::module_& m) {
  m.def(
      "gated_delta",
      &gated_delta,
      "q"_a,
      "k"_a,
      "v"_a,
      "g"_a.none() = nb::none(),
      "beta"_a.none() = nb::none(),
      "state"_a.none() = nb::none(),
      nb::kw_only(),
      "gates"_a.none() = nb::none(),
      "starts"_a.none() = nb::none(),
      "lengths"_a.none() = nb::none(),
      "normalize_qk"_a = false,
      "precision"_a.none() = nb::none(),
      "stream"_a.none() = nb::none()
  );
  m.def(
      "causal_conv1d",
      &causal_conv1d,
      "x"_a,
      "weight"_a,
      "state"_a.none() = nb::none(),
      nb::kw_only(),
      "activation"_a.none() = nb::str("silu"),
      "starts"_a.none() = nb::none(),
      "lengths"_a.none() = nb::none(),
      "stream"_a.none() = nb::none()
  );
}

} // namespace tessl
