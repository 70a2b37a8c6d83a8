#pragma once

#include <string>
#include <vector>

#include "backends/emulator/include/runtime/abi.h"
#include "launch/plan.h"

namespace tessl::emulator {

// What one launch did.
struct Reading {
  std::string kernel;
  Size3 grid;
  Size3 group;
  bool checked = false; // bytes are counted only where accesses are reported
  emu::Counters counters{};
};

// Keeps the readings of launches until they are taken; beyond `max_readings`, forgets the oldest.
void add_reading(Reading reading);
std::vector<Reading> take_readings();

} // namespace tessl::emulator
