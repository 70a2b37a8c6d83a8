#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>

#include "bindings/bindings.h"
#include "ops/quantized_embedding.h"
#include "ops/quantized_matmul.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tessl {

void bind_quantized(nb::module_& m) {
  m.def(
      "quantized_embedding",
      &quantized_embedding,
      "ids"_a,
      "w"_a,
      "scales"_a,
      "biases"_a.none() = nb::none(),
      nb::kw_only(),
      "group_size"_a.none() = nb::none(),
      "bits"_a.none() = nb::none(),
      "mode"_a = "affine",
      "stream"_a.none() = nb::none()
  );
  m.def(
      "quantized_matmul",
      &quantized_matmul,
      "x"_a,
      "w"_a,
      "scales"_a,
      "biases"_a.none() = nb::none(),
      nb::kw_only(),
      "transpose"_a = true,
      "group_size"_a.none() = nb::none(),
      "bits"_a.none() = nb::none(),
      "mode"_a = "affine",
      "bias"_a.none() = nb::none(),
      "activation"_a.none() = nb::none(),
      "precision"_a.none() = nb::none(),
      "stream"_a.none() = nb::none()
  );
}

} // namespace tessl
