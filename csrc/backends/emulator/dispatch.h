#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backends/emulator/include/runtime/abi.h"
#include "launch/emulation.h"
#include "launch/plan.h"

namespace tessl::emulator {

class Library;

// Memory bound to one [[buffer(i)]].
struct Binding {
  enum class Role : uint8_t {
    unused,
    input,
    output,  // written in full, never read before that
    bytes,   // constant data
    updated, // read and written; only in tests
  };

  Role role = Role::unused;
  void* data = nullptr;
  size_t nbytes = 0;    // from `data` on
  size_t before = 0;    // bytes ahead of it that belong to it
  bool scratch = false; // holds nothing before the first dispatch and matters to nobody after the last
  std::string name;     // "input 0", "scratch 1": for findings

  char* begin() const {
    return static_cast<char*>(data) - before;
  }
  size_t size() const {
    return before + nbytes;
  }
};

struct BoundConstant {
  int32_t index = 0;
  emu::ConstantType type = emu::ConstantType::boolean;
  uint64_t bits = 0;
};

// One kernel with everything bound, wherever it came from.
struct Dispatch {
  const Library* library = nullptr;
  const emu::KernelInfo* kernel = nullptr;
  std::vector<BoundConstant> constants;
  std::vector<Binding> bindings;            // by buffer index
  std::vector<uint32_t> threadgroup_memory; // bytes for each [[threadgroup(i)]]
  Size3 grid;                               // threadgroups
  Size3 group;
  Size3 threads{0, 0, 0}; // of the whole grid, where the last threadgroups are not full; 0 for grid x group
};

// How a dispatch is run: one order of threadgroups, simdgroups and lanes.
struct Schedule {
  Emulation::Order order = Emulation::Order::forward;
  uint64_t seed = 0;
  float ulp_noise = 0.0f;
};

} // namespace tessl::emulator
