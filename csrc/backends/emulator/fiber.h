#pragma once

#include <cstddef>
#include <cstdint>

namespace tessl::emulator {

// Stacks of the threads of one threadgroup, with a guard page below each.
class FiberStacks {
 public:
  static constexpr size_t stack_bytes = 256 * 1024;

  explicit FiberStacks(size_t count);
  ~FiberStacks();
  FiberStacks(const FiberStacks&) = delete;
  FiberStacks& operator=(const FiberStacks&) = delete;

  // A stack pointer for switch_fiber() that starts stack `i` anew in `entry`, which must not return.
  void* start(size_t i, void (*entry)());

  bool contains(uintptr_t address) const {
    return address - base_ < count_ * stack_bytes;
  }

 private:
  uintptr_t base_;
  size_t count_;
};

// Saves the running fiber's stack pointer and goes on where `to` was saved.
extern "C" void tessl_switch_fiber(void** save, void* to);

} // namespace tessl::emulator
