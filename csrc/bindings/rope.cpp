#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/variant.h>

#include "bindings/bindings.h"
#include "ops/rope.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tessl {

void bind_rope(nb::module_& m) {
  m.def(
      "rope",
      &rope,
      "x"_a,
      "positions"_a,
      "inv_freq"_a,
      nb::kw_only(),
      "rotary_dim"_a.none() = nb::none(),
      "interleaved"_a = false,
      "stream"_a.none() = nb::none()
  );
  m.def(
      "qk_norm_rope",
      &qk_norm_rope,
      "q"_a,
      "k"_a,
      "q_weight"_a,
      "k_weight"_a,
      "positions"_a,
      "inv_freq"_a,
      "eps"_a,
      nb::kw_only(),
      "weight_offset"_a = 0.0f,
      "rotary_dim"_a.none() = nb::none(),
      "stream"_a.none() = nb::none()
  );
}

} // namespace tessl
