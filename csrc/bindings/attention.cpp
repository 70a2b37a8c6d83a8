#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/variant.h>

#include "bindings/bindings.h"
#include "ops/attention.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tessl {

void bind_attention(nb::module_& m) {
  m.def(
      "attention",
      &attention,
      "q"_a,
      "k"_a,
      "v"_a,
      nb::kw_only(),
      "scale"_a,
      "lengths"_a.none() = nb::none(),
      "stream"_a.none() = nb::none()
  );
}

} // namespace tessl
