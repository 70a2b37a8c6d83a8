#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "bindings/plan_values.h"
#include "launch/trace.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tessl {

void bind_trace(nb::module_& m) {
  using LaunchRecord = TraceEntry::LaunchRecord;
  nb::class_<LaunchRecord>(m, "LaunchRecord", "One dispatch of a traced op.")
      .def_ro("kernel", &LaunchRecord::kernel)
      .def_ro("family", &LaunchRecord::family)
      .def_ro("capability", &LaunchRecord::capability)
      .def_ro("threadgroup_memory", &LaunchRecord::threadgroup_memory)
      .def_prop_ro("constants", [](const LaunchRecord& r) { return constants_dict(r.constants); })
      .def_prop_ro("grid", [](const LaunchRecord& r) { return size_tuple(r.grid); })
      .def_prop_ro("group", [](const LaunchRecord& r) { return size_tuple(r.group); });
  nb::class_<TraceEntry>(m, "TraceEntry", "One evaluation of one op.")
      .def_ro("op", &TraceEntry::op)
      .def_ro("backend", &TraceEntry::backend)
      .def_ro("launches", &TraceEntry::launches)
      .def("__repr__", [](const TraceEntry& entry) {
        std::string text = entry.op + " on " + entry.backend;
        for (const auto& launch : entry.launches) {
          text += (&launch == entry.launches.data() ? ": " : ", ") + launch.kernel;
        }
        return text;
      });
  m.def("start_trace", &start_trace);
  m.def("take_trace", &take_trace);
}

} // namespace tessl
