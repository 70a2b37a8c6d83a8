#include "launch/pipeline_name.h"

#include "launch/decimal.h"

namespace tessl {

std::string pipeline_name(const Kernel& kernel, const decltype(Launch::constants)& constants) {
  auto name = kernel.name;
  for (const auto& constant : constants) {
    name += "_" + decimal(constant.index) + "bif"[static_cast<int>(constant.type)] + decimal(constant.bits);
  }
  return name;
}

} // namespace tessl
