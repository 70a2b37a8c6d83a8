#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>

#include "bindings/bindings.h"
#include "ops/matmul.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tessl {

void bind_matmul(nb::module_& m) {
  m.def(
      "matmul",
      &matmul,
      "a"_a,
      "b"_a,
      "c"_a.none() = nb::none(),
      nb::kw_only(),
      "alpha"_a = 1.0f,
      "beta"_a = 0.0f,
      "bias"_a.none() = nb::none(),
      "activation"_a.none() = nb::none(),
      "precision"_a.none() = nb::none(),
      "batch_invariant"_a = false,
      "stream"_a.none() = nb::none()
  );
  m.def(
      "linear",
      &linear,
      "x"_a,
      "weight"_a,
      "bias"_a.none() = nb::none(),
      nb::kw_only(),
      "activation"_a.none() = nb::none(),
      "residual"_a.none() = nb::none(),
      "precision"_a.none() = nb::none(),
      "batch_invariant"_a = false,
      "stream"_a.none() = nb::none()
  );
}

} // namespace tessl
