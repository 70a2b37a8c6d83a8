#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "backends/emulator/checker.h"
#include "backends/emulator/dispatch.h"
#include "backends/emulator/fiber.h"
#include "backends/emulator/include/runtime/abi.h"

namespace tessl::emulator {

// Runs dispatches: one fiber for each thread of a threadgroup, one threadgroup after the other.
//
// A lane runs until it waits. When no lane of a simdgroup can go on, the waiting lanes that are furthest back in the
// code form a group: the operation they wait at is computed for all of them at once. When no simdgroup can go on, all
// threads must be at one barrier, or at one operation of the whole threadgroup.
class Machine {
 public:
  Machine();

  // Runs every threadgroup of a dispatch. `checker` is null for a library that does not report its accesses.
  // Throws std::runtime_error with what stopped the kernel.
  emu::Counters run(const Dispatch& dispatch, const Schedule& schedule, Checker* checker);

 private:
  enum class State : uint8_t { ready, in_operation, in_threadgroup_operation, at_barrier, done };

  struct Lane {
    void* stack_pointer = nullptr;
    State state = State::ready;
    emu::Index3 position{};
    // What it waits for.
    void* request = nullptr;
    emu::Operation operation = nullptr; // null for a barrier
    const void* site = nullptr;
    uint32_t flags = 0;
    uint32_t simdgroups = 0; // that a threadgroup operation spans
  };

  struct Simdgroup {
    std::array<Lane, emu::simd_width> lanes;
    uint32_t index = 0;
    uint32_t present = 0; // masks of lanes
    uint32_t alive = 0;
    uint32_t ready = 0;
  };

  void bind(const Dispatch& dispatch, const Schedule& schedule);
  void bind_constants(const Dispatch& dispatch);
  std::vector<uint32_t> threadgroup_order(uint32_t count);
  void run_threadgroup(const Dispatch& dispatch);
  void start_threads();
  void begin_threadgroup_memory(const Dispatch& dispatch);
  std::vector<uint32_t> simdgroup_order();
  bool release_threadgroup();
  void release_barrier();
  void run_threadgroup_operation();
  void run_on_fiber(void* stack_pointer);
  void throw_failure(const Dispatch& dispatch);

  void enter(Simdgroup& simdgroup, uint32_t lane);
  void park(Lane& lane);
  void leave(Lane& lane);
  void resolve(Simdgroup& simdgroup, uint32_t waiting);
  uint32_t pick(uint32_t mask);
  uint64_t random();
  Lane& running_lane() {
    return current_->lanes[public_.lane];
  }
  ThreadPlace place() const {
    return {public_.threadgroup, public_.simdgroup, public_.lane};
  }
  void fail(std::string message);
  void access(uintptr_t address, size_t bytes, emu::Access access);
  uint64_t declare_threadgroup_memory(const char* name, uint64_t bytes, uint64_t alignment);

  // What kernels call.
  static void on_rendezvous(void* request, emu::Operation operation, const void* site);
  static void on_rendezvous_threadgroup(void* request, emu::Operation operation, const void* site, uint32_t simdgroups);
  static void on_barrier(uint32_t flags, const void* site);
  static void on_simdgroup_barrier(uint32_t flags, const void* site);
  static uint64_t on_declare_threadgroup_memory(const char* name, uint64_t bytes, uint64_t alignment);
  static void on_access(const void* address, uint64_t bytes, emu::Access access, const void* site);
  static void* on_scratch(uint64_t bytes);
  static void on_fail(const char* message);
  static void thread_main();
  static void operation_main();

  emu::Machine public_{};
  FiberStacks stacks_;
  std::unique_ptr<char[]> arena_; // threadgroup memory
  uint64_t arena_used_ = 0;
  uint64_t threadgroup_bytes_ = 0; // of declarations and arguments, without the gaps between them
  std::vector<std::unique_ptr<ShadowedRange>> arena_ranges_;
  std::vector<char> scratch_;

  Schedule schedule_;
  uint64_t random_state_ = 1;
  Checker* checker_ = nullptr;
  const Library* library_ = nullptr;
  const emu::KernelInfo* kernel_ = nullptr;

  std::array<Simdgroup, emu::max_simdgroups> simdgroups_;
  Simdgroup* current_ = nullptr;
  bool on_fiber_ = false;
  void* main_stack_pointer_ = nullptr;
  void* abandoned_stack_pointer_ = nullptr;
  std::string failure_;
  // Of the operation of a whole threadgroup that is running.
  emu::Operation threadgroup_operation_ = nullptr;
  std::vector<void*> threadgroup_requests_;
};

// The machine of this process; hold its lock while it runs.
Machine& the_machine();

} // namespace tessl::emulator
