#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backends/emulator/include/runtime/abi.h"

namespace tessl::emulator {

// Who did what to one byte, last.
struct ShadowCell {
  uint32_t threadgroup = 0; // serial number over all launches, 0 for never
  uint32_t epoch = 0;       // of the threadgroup's barriers for this kind of memory
  uint32_t simdgroup_epoch = 0;
  uint16_t thread = 0;
  enum class Threads : uint8_t { one, several, several_simdgroups } threads = Threads::one; // in this epoch
  bool atomic = false;
};

// Memory with a shadow: for every byte the last write, the last read, and whether it was ever written.
class ShadowedRange {
 public:
  ShadowedRange(std::string name, uintptr_t base, size_t nbytes, bool is_threadgroup, bool written, bool writable);

  bool contains(uintptr_t address) const {
    return address - base_ < nbytes_;
  }
  // The first byte that nobody wrote, or the size.
  size_t first_unwritten(size_t from, size_t to) const;
  void note_writes(size_t from, size_t to);
  void forget_writes(size_t from, size_t to);

  std::string name_;
  uintptr_t base_;
  size_t nbytes_;
  bool is_threadgroup_;
  bool writable_;

 private:
  friend class Checker;
  struct Free {
    void operator()(void* memory) const;
  };
  template <typename T>
  using Zeroed = std::unique_ptr<T[], Free>;

  Zeroed<ShadowCell> writes_;
  Zeroed<ShadowCell> reads_;
  Zeroed<uint8_t> written_;
};

constexpr bool reads(emu::Access access) {
  return access != emu::Access::write && access != emu::Access::atomic_store;
}
constexpr bool writes(emu::Access access) {
  return access != emu::Access::read && access != emu::Access::atomic_load;
}
constexpr bool is_atomic(emu::Access access) {
  return access != emu::Access::read && access != emu::Access::write;
}

struct ThreadPlace {
  emu::Index3 threadgroup;
  uint32_t simdgroup = 0;
  uint32_t lane = 0;

  uint16_t thread() const {
    return static_cast<uint16_t>(simdgroup * emu::simd_width + lane);
  }
};

// Watches every access of a launch: races, reads of what nobody wrote, accesses outside of all buffers.
class Checker {
 public:
  void add(ShadowedRange* range);
  void clear_ranges();

  void begin_launch();
  void begin_threadgroup();
  void threadgroup_barrier(uint32_t flags);
  void simdgroup_barrier(uint32_t simdgroup, uint32_t flags);

  // The range of an address, null if it is in none.
  ShadowedRange* find(uintptr_t address);
  // Notes an access inside of `range`; appends what is wrong with it to the findings.
  void note(ShadowedRange& range, uintptr_t address, size_t bytes, emu::Access access, const ThreadPlace& place);
  // What to say of an access outside of all ranges.
  std::string describe_stray(uintptr_t address, size_t bytes, emu::Access access, const ThreadPlace& place) const;

  // Of findings of one kind, the first is told and the others are counted.
  void report(std::string kind, std::string finding);
  std::vector<std::string> take_findings();

 private:
  struct Finding {
    std::string kind;
    std::string text;
    uint64_t others;
  };

  bool conflicts(const ShadowCell& cell, const ShadowedRange& range, const ThreadPlace& place, bool atomic) const;
  void report_race(
      const ShadowedRange& range,
      size_t offset,
      bool is_write,
      const ShadowCell& other,
      bool other_wrote,
      const ThreadPlace& place
  );

  std::vector<ShadowedRange*> ranges_;
  ShadowedRange* last_ = nullptr;
  uint32_t threadgroup_ = 0;
  uint32_t first_threadgroup_ = 1; // of the launch
  uint32_t threadgroup_epoch_ = 1;
  uint32_t device_epoch_ = 1;
  uint32_t simdgroup_epochs_[2][emu::max_simdgroups] = {}; // of device and of threadgroup memory
  std::vector<Finding> findings_;
};

} // namespace tessl::emulator
