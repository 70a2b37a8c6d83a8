#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/variant.h>

#include "bindings/bindings.h"
#include "ops/sampling.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tessl {

void bind_sampling(nb::module_& m) {
  m.def("argmax", &argmax, "logits"_a, "softcap"_a.none() = nb::none(), nb::kw_only(), "stream"_a.none() = nb::none());
  m.def(
      "sample",
      &sample,
      "logits"_a,
      "noise"_a,
      nb::kw_only(),
      "temperature"_a = 1.0f,
      "top_k"_a.none() = nb::none(),
      "top_p"_a.none() = nb::none(),
      "softcap"_a.none() = nb::none(),
      "stream"_a.none() = nb::none()
  );
}

} // namespace tessl
