#pragma once

#include <cstdint>
#include <memory>

#include "launch/device_profile.h"

namespace tessl {

// How CPU-stream primitives run their shaders while mlx_tessl.emulate() is in force.
struct Emulation {
  enum class Order : uint8_t { forward, reverse, shuffled };

  DeviceProfile device;
  bool check = false;           // races, bounds, unwritten reads, poisoned outputs, agreement of orders
  Order order = Order::forward; // of threadgroups and simdgroups
  uint64_t seed = 0;            // of shuffles and layout permutations
  float ulp_noise = 0.0f;       // ulps by which fast:: functions may err

  bool operator==(const Emulation&) const = default;
};

// What ops built on this thread capture; null outside mlx_tessl.emulate().
std::shared_ptr<const Emulation> current_emulation();
void push_emulation(Emulation emulation);
void pop_emulation();

// Within its life this thread has the emulation given, or none.
class WithEmulation {
 public:
  explicit WithEmulation(std::shared_ptr<const Emulation> emulation);
  ~WithEmulation();
  WithEmulation(const WithEmulation&) = delete;
  WithEmulation& operator=(const WithEmulation&) = delete;
};

} // namespace tessl
