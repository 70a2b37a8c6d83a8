#include <nanobind/nanobind.h>
#include <nanobind/stl/variant.h>

#include "bindings/bindings.h"
#include "ops/kv_store.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tessl {

void bind_kv_store(nb::module_& m) {
  m.def("kv_store", &kv_store, "cache"_a, "new"_a, "position"_a, nb::kw_only(), "stream"_a.none() = nb::none());
}

} // namespace tessl
