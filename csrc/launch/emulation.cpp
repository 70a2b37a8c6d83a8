#include "launch/emulation.h"

#include <stdexcept>
#include <utility>
#include <vector>

namespace tessl {
namespace {

thread_local std::vector<std::shared_ptr<const Emulation>> emulations;

} // namespace

std::shared_ptr<const Emulation> current_emulation() {
  return emulations.empty() ? nullptr : emulations.back();
}

void push_emulation(Emulation emulation) {
  emulations.push_back(std::make_shared<const Emulation>(std::move(emulation)));
}

void pop_emulation() {
  if (emulations.empty()) {
    throw std::runtime_error("[mlx_tessl.emulate] left more often than entered on this thread");
  }
  emulations.pop_back();
}

WithEmulation::WithEmulation(std::shared_ptr<const Emulation> emulation) {
  emulations.push_back(std::move(emulation));
}

WithEmulation::~WithEmulation() {
  emulations.pop_back();
}

} // namespace tessl
