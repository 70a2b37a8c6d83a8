#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <stdexcept>

#include "bindings/bindings.h"
#include "launch/emulation.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tessl {
namespace {

Emulation::Order parse_order(const std::string& order) {
  if (order == "forward") {
    return Emulation::Order::forward;
  }
  if (order == "reverse") {
    return Emulation::Order::reverse;
  }
  if (order == "shuffled") {
    return Emulation::Order::shuffled;
  }
  throw std::invalid_argument(
      "[mlx_tessl.emulate] order is '" + order + "'; it must be 'forward', 'reverse' or 'shuffled'"
  );
}

} // namespace

void bind_emulation(nb::module_& m) {
  m.def(
      "push_emulation",
      [](const std::string& gpu,
         const std::string& macos,
         bool check,
         const std::string& order,
         uint64_t seed,
         float ulp_noise) {
        push_emulation({make_device_profile(gpu, macos), check, parse_order(order), seed, ulp_noise});
      },
      "gpu"_a,
      "macos"_a,
      nb::kw_only(),
      "check"_a,
      "order"_a,
      "seed"_a,
      "ulp_noise"_a
  );
  m.def("pop_emulation", &pop_emulation);
}

} // namespace tessl
