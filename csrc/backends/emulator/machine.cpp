#include "backends/emulator/machine.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "backends/emulator/library.h"
#include "launch/decimal.h"

namespace tessl::emulator {

namespace {

constexpr uint64_t max_threadgroup_bytes = 32 * 1024;
constexpr uint64_t arena_bytes = 256 * 1024; // with gaps
constexpr uint64_t gap = 64;                 // between threadgroup variables, when accesses are checked
constexpr int poison = 0xff;                 // NaN in every float type

Machine* active = nullptr;

uint32_t low_bits(uint32_t count) {
  return count >= 32 ? ~0u : (1u << count) - 1;
}

template <typename Visit>
void for_bits(uint32_t mask, Visit visit) {
  for (; mask != 0; mask &= mask - 1) {
    visit(static_cast<uint32_t>(std::countr_zero(mask)));
  }
}

emu::Index3 index3(const Size3& size) {
  return {size.x, size.y, size.z};
}

} // namespace

Machine::Machine() : stacks_(emu::max_threads + 1), arena_(new char[arena_bytes]) {
  public_.threadgroup_memory = arena_.get();
  public_.rendezvous = on_rendezvous;
  public_.rendezvous_threadgroup = on_rendezvous_threadgroup;
  public_.barrier = on_barrier;
  public_.simdgroup_barrier = on_simdgroup_barrier;
  public_.declare_threadgroup_memory = on_declare_threadgroup_memory;
  public_.access = on_access;
  public_.scratch = on_scratch;
  public_.fail = on_fail;
}

emu::Counters Machine::run(const Dispatch& dispatch, const Schedule& schedule, Checker* checker) {
  active = this;
  checker_ = checker;
  bind(dispatch, schedule);
  if (checker_ != nullptr) {
    checker_->begin_launch();
  }
  const auto& grid = dispatch.grid;
  for (uint32_t i : threadgroup_order(grid.x * grid.y * grid.z)) {
    public_.threadgroup = {i % grid.x, i / grid.x % grid.y, i / (grid.x * grid.y)};
    run_threadgroup(dispatch);
  }
  public_.counters.threadgroup_memory = threadgroup_bytes_;
  public_.counters.scalar_flops = *library_->info().scalar_flops;
  return public_.counters;
}

void Machine::bind(const Dispatch& dispatch, const Schedule& schedule) {
  library_ = dispatch.library;
  kernel_ = dispatch.kernel;
  schedule_ = schedule;
  random_state_ = schedule.seed * 0x9e3779b97f4a7c15ull + 1;
  *library_->info().machine = &public_;
  bind_constants(dispatch);

  ++public_.launch;
  public_.seed = schedule.seed;
  public_.ulp_noise = schedule.ulp_noise;
  public_.check = checker_ != nullptr;
  public_.counters = {};
  *library_->info().scalar_flops = 0;
  public_.nominal_threads_per_threadgroup = index3(dispatch.group);
  public_.threadgroups_per_grid = index3(dispatch.grid);
  const bool full = dispatch.threads.x == 0;
  const Size3& grid = dispatch.grid;
  const Size3& group = dispatch.group;
  public_.threads_per_grid =
      full ? emu::Index3{grid.x * group.x, grid.y * group.y, grid.z * group.z} : index3(dispatch.threads);
  for (uint32_t i = 0; i < emu::max_buffers; ++i) {
    const bool bound = i < dispatch.bindings.size() && dispatch.bindings[i].role != Binding::Role::unused;
    public_.buffers[i] = bound ? dispatch.bindings[i].data : nullptr;
    public_.buffer_bytes[i] = bound ? dispatch.bindings[i].nbytes : 0;
  }

  arena_used_ = 0;
  threadgroup_bytes_ = 0;
  arena_ranges_.clear();
  for (size_t i = 0; i < dispatch.threadgroup_memory.size(); ++i) {
    const std::string name = "argument " + decimal(i);
    public_.threadgroup_arguments[i] =
        arena_.get() + declare_threadgroup_memory(name.c_str(), dispatch.threadgroup_memory[i], 16);
  }
}

void Machine::bind_constants(const Dispatch& dispatch) {
  emu::ConstantValue* values = library_->info().constant_values;
  for (uint32_t i = 0; i < library_->info().constant_count; ++i) {
    values[library_->info().constants[i].index] = {};
  }
  for (const BoundConstant& constant : dispatch.constants) {
    values[constant.index] = {true, constant.bits};
  }
}

uint64_t Machine::random() {
  random_state_ ^= random_state_ << 13;
  random_state_ ^= random_state_ >> 7;
  random_state_ ^= random_state_ << 17;
  return random_state_;
}

std::vector<uint32_t> Machine::threadgroup_order(uint32_t count) {
  std::vector<uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0u);
  if (schedule_.order == Emulation::Order::reverse) {
    std::reverse(order.begin(), order.end());
  } else if (schedule_.order == Emulation::Order::shuffled) {
    for (size_t i = count; i > 1; --i) {
      std::swap(order[i - 1], order[random() % i]);
    }
  }
  return order;
}

std::vector<uint32_t> Machine::simdgroup_order() {
  return threadgroup_order(public_.simdgroups);
}

// The lane to go on with.
uint32_t Machine::pick(uint32_t mask) {
  switch (schedule_.order) {
    case Emulation::Order::forward:
      return static_cast<uint32_t>(std::countr_zero(mask));
    case Emulation::Order::reverse:
      return 31 - static_cast<uint32_t>(std::countl_zero(mask));
    default:
      for (uint64_t skip = random() % static_cast<uint64_t>(std::popcount(mask)); skip > 0; --skip) {
        mask &= mask - 1;
      }
      return static_cast<uint32_t>(std::countr_zero(mask));
  }
}

// One threadgroup

void Machine::run_threadgroup(const Dispatch& dispatch) {
  begin_threadgroup_memory(dispatch);
  start_threads();
  do {
    for (uint32_t i : simdgroup_order()) {
      Simdgroup& simdgroup = simdgroups_[i];
      if (simdgroup.ready != 0) {
        enter(simdgroup, pick(simdgroup.ready));
        run_on_fiber(running_lane().stack_pointer);
        throw_failure(dispatch);
      }
    }
  } while (release_threadgroup());
  throw_failure(dispatch);
}

void Machine::run_on_fiber(void* stack_pointer) {
  on_fiber_ = true;
  tessl_switch_fiber(&main_stack_pointer_, stack_pointer);
  on_fiber_ = false;
}

void Machine::begin_threadgroup_memory(const Dispatch&) {
  std::memset(arena_.get(), poison, arena_used_);
  if (checker_ != nullptr) {
    checker_->begin_threadgroup();
    for (auto& range : arena_ranges_) {
      range->forget_writes(0, range->nbytes_);
    }
  }
}

void Machine::start_threads() {
  const emu::Index3 nominal = public_.nominal_threads_per_threadgroup;
  const emu::Index3 all = public_.threads_per_grid;
  const emu::Index3 at = public_.threadgroup;
  const emu::Index3 size{
      std::min(nominal.x, all.x - at.x * nominal.x),
      std::min(nominal.y, all.y - at.y * nominal.y),
      std::min(nominal.z, all.z - at.z * nominal.z),
  };
  public_.threads_per_threadgroup = size;
  const uint32_t count = size.x * size.y * size.z;
  public_.simdgroups = (count + emu::simd_width - 1) / emu::simd_width;
  for (uint32_t i = 0; i < count; ++i) {
    Lane& lane = simdgroups_[i / emu::simd_width].lanes[i % emu::simd_width];
    lane.stack_pointer = stacks_.start(i, thread_main);
    lane.state = State::ready;
    lane.position = {i % size.x, i / size.x % size.y, i / (size.x * size.y)};
  }
  for (uint32_t i = 0; i < public_.simdgroups; ++i) {
    Simdgroup& simdgroup = simdgroups_[i];
    simdgroup.index = i;
    simdgroup.present = simdgroup.alive = simdgroup.ready = low_bits(count - i * emu::simd_width);
  }
  public_.counters.threadgroups += 1;
  public_.counters.threads += count;
}

// Lets all threads go on once all of them wait; false when all are done.
bool Machine::release_threadgroup() {
  uint32_t at_barrier = 0, in_operation = 0;
  for (uint32_t i = 0; i < public_.simdgroups; ++i) {
    for_bits(simdgroups_[i].alive, [&](uint32_t lane) {
      at_barrier += simdgroups_[i].lanes[lane].state == State::at_barrier;
      in_operation += simdgroups_[i].lanes[lane].state == State::in_threadgroup_operation;
    });
  }
  if (in_operation > 0) {
    run_threadgroup_operation();
  } else if (at_barrier > 0) {
    release_barrier();
  }
  return at_barrier + in_operation > 0 && failure_.empty();
}

void Machine::release_barrier() {
  uint32_t flags = ~0u;
  const void* site = nullptr;
  bool some_exited = false, apart = false;
  for (uint32_t i = 0; i < public_.simdgroups; ++i) {
    Simdgroup& simdgroup = simdgroups_[i];
    some_exited |= simdgroup.alive != simdgroup.present;
    for_bits(simdgroup.alive, [&](uint32_t lane) {
      Lane& waiting = simdgroup.lanes[lane];
      flags &= waiting.flags;
      apart |= site != nullptr && waiting.site != site;
      site = waiting.site;
      waiting.state = State::ready;
    });
    simdgroup.ready = simdgroup.alive;
  }
  public_.counters.threadgroup_barriers += 1;
  if (checker_ != nullptr) {
    const std::string where = " in threadgroup (" + decimal(public_.threadgroup.x) + ", " +
                              decimal(public_.threadgroup.y) + ", " + decimal(public_.threadgroup.z) + ")";
    if (some_exited) {
      const std::string what = "a threadgroup barrier is reached after some threads have returned";
      checker_->report(what, what + where);
    }
    if (apart) {
      const std::string what = "threads wait at different threadgroup barriers";
      checker_->report(what, what + where);
    }
    checker_->threadgroup_barrier(flags);
  }
}

void Machine::run_threadgroup_operation() {
  threadgroup_requests_.assign(public_.simdgroups * emu::simd_width, nullptr);
  const Lane* first = nullptr;
  uint32_t missing = 0;
  bool apart = false;
  for (uint32_t i = 0; i < public_.simdgroups; ++i) {
    Simdgroup& simdgroup = simdgroups_[i];
    for (uint32_t lane = 0; lane < emu::simd_width; ++lane) {
      const Lane& waiting = simdgroup.lanes[lane];
      const bool here = (simdgroup.alive >> lane & 1) != 0 && waiting.state == State::in_threadgroup_operation;
      missing += here ? 0 : 1;
      if (here) {
        first = first == nullptr ? &waiting : first;
        apart |= waiting.site != first->site || waiting.operation != first->operation;
        threadgroup_requests_[i * emu::simd_width + lane] = waiting.request;
      }
    }
  }
  if (missing > 0 || apart) {
    failure_ = "a subset of the simdgroups reached run() of a matmul2d over several simdgroups";
    return;
  }
  if (first->simdgroups != public_.simdgroups) {
    failure_ = "matmul2d over execution_simdgroups<" + decimal(first->simdgroups) + "> in a threadgroup of " +
               decimal(public_.simdgroups) + " simdgroups";
    return;
  }
  for (uint32_t i = 0; i < public_.simdgroups; ++i) {
    for (Lane& lane : simdgroups_[i].lanes) {
      lane.state = State::ready;
    }
    simdgroups_[i].ready = simdgroups_[i].alive;
  }
  threadgroup_operation_ = first->operation;
  enter(simdgroups_[0], 0);
  run_on_fiber(stacks_.start(emu::max_threads, operation_main));
}

void Machine::throw_failure(const Dispatch& dispatch) {
  if (!failure_.empty()) {
    throw std::runtime_error("[emulator] " + std::string(dispatch.kernel->name) + ": " + std::exchange(failure_, {}));
  }
}

// Threads

void Machine::enter(Simdgroup& simdgroup, uint32_t lane) {
  current_ = &simdgroup;
  public_.simdgroup = simdgroup.index;
  public_.lane = lane;
  public_.thread_in_threadgroup = simdgroup.lanes[lane].position;
}

void Machine::thread_main() {
  active->kernel_->entry();
  Machine& machine = *active;
  Lane& lane = machine.running_lane();
  machine.current_->alive &= ~(1u << machine.public_.lane);
  lane.state = State::done;
  machine.park(lane);
}

void Machine::operation_main() {
  active->threadgroup_operation_(active->threadgroup_requests_.data(), ~0u, active->public_.simdgroups);
  tessl_switch_fiber(&active->abandoned_stack_pointer_, active->main_stack_pointer_);
}

void Machine::park(Lane& lane) {
  current_->ready &= ~(1u << public_.lane);
  leave(lane);
}

// Goes on with another lane of the simdgroup, or, when all wait for more than the simdgroup, with the machine.
void Machine::leave(Lane& lane) {
  Simdgroup& simdgroup = *current_;
  for (;;) {
    if (simdgroup.ready != 0) {
      enter(simdgroup, pick(simdgroup.ready));
      Lane& next = running_lane();
      if (&next != &lane) {
        tessl_switch_fiber(&lane.stack_pointer, next.stack_pointer);
      }
      return;
    }
    uint32_t waiting = 0;
    for_bits(simdgroup.alive, [&](uint32_t i) {
      waiting |= simdgroup.lanes[i].state == State::in_operation ? 1u << i : 0;
    });
    if (waiting == 0 || !failure_.empty()) {
      tessl_switch_fiber(&lane.stack_pointer, main_stack_pointer_);
      return;
    }
    resolve(simdgroup, waiting);
  }
}

// Runs the operation of the waiting lanes that are furthest back in the code.
void Machine::resolve(Simdgroup& simdgroup, uint32_t waiting) {
  const Lane* first = nullptr;
  for_bits(waiting, [&](uint32_t i) {
    const Lane& lane = simdgroup.lanes[i];
    if (first == nullptr || std::less<const void*>{}(lane.site, first->site)) {
      first = &lane;
    }
  });
  void* requests[emu::simd_width] = {};
  uint32_t group = 0;
  for_bits(waiting, [&](uint32_t i) {
    Lane& lane = simdgroup.lanes[i];
    if (lane.site == first->site && lane.operation == first->operation) {
      group |= 1u << i;
      requests[i] = lane.request;
      lane.state = State::ready;
    }
  });
  if (first->operation == nullptr) {
    public_.counters.simdgroup_barriers += 1;
    if (checker_ != nullptr) {
      checker_->simdgroup_barrier(simdgroup.index, first->flags);
    }
  } else {
    public_.counters.simd_operations += 1;
    public_.counters.divergent_operations += group != simdgroup.alive;
    first->operation(requests, group, 1);
  }
  simdgroup.ready |= group;
}

void Machine::fail(std::string message) {
  if (!on_fiber_) {
    throw std::runtime_error("[emulator] " + std::string(kernel_->name) + ": " + message);
  }
  const emu::Index3& t = public_.threadgroup;
  failure_ = std::move(message) + " [thread " + decimal(place().thread()) + " of threadgroup (" + decimal(t.x) + ", " +
             decimal(t.y) + ", " + decimal(t.z) + ")]";
  tessl_switch_fiber(&abandoned_stack_pointer_, main_stack_pointer_);
}

// What kernels call

void Machine::on_rendezvous(void* request, emu::Operation operation, const void* site) {
  Lane& lane = active->running_lane();
  lane.request = request;
  lane.operation = operation;
  lane.site = site;
  lane.state = State::in_operation;
  active->park(lane);
}

void Machine::on_rendezvous_threadgroup(
    void* request, emu::Operation operation, const void* site, uint32_t simdgroups
) {
  Lane& lane = active->running_lane();
  lane.request = request;
  lane.operation = operation;
  lane.site = site;
  lane.simdgroups = simdgroups;
  lane.state = State::in_threadgroup_operation;
  active->park(lane);
}

void Machine::on_barrier(uint32_t flags, const void* site) {
  Lane& lane = active->running_lane();
  lane.flags = flags;
  lane.site = site;
  lane.state = State::at_barrier;
  active->park(lane);
}

void Machine::on_simdgroup_barrier(uint32_t flags, const void* site) {
  Lane& lane = active->running_lane();
  lane.operation = nullptr;
  lane.flags = flags;
  lane.site = site;
  lane.state = State::in_operation;
  active->park(lane);
}

uint64_t Machine::on_declare_threadgroup_memory(const char* name, uint64_t bytes, uint64_t alignment) {
  return active->declare_threadgroup_memory(name, bytes, alignment);
}

uint64_t Machine::declare_threadgroup_memory(const char* name, uint64_t bytes, uint64_t alignment) {
  alignment = std::max<uint64_t>(alignment, 16);
  threadgroup_bytes_ = (threadgroup_bytes_ + alignment - 1) / alignment * alignment + bytes;
  if (threadgroup_bytes_ > max_threadgroup_bytes) {
    fail(
        "threadgroup memory comes to " + decimal(threadgroup_bytes_) + " bytes with '" + name + "'; " +
        decimal(max_threadgroup_bytes) + " are allowed"
    );
  }
  const uint64_t offset = (arena_used_ + alignment - 1) / alignment * alignment;
  arena_used_ = offset + bytes + (checker_ != nullptr ? gap : 0);
  std::memset(arena_.get() + offset, poison, bytes);
  if (checker_ != nullptr) {
    const auto base = reinterpret_cast<uintptr_t>(arena_.get() + offset);
    arena_ranges_.push_back(
        std::make_unique<ShadowedRange>(std::string("threadgroup ") + name, base, bytes, true, false, true)
    );
    checker_->add(arena_ranges_.back().get());
  }
  return offset;
}

void Machine::on_access(const void* address, uint64_t bytes, emu::Access access, const void*) {
  active->access(reinterpret_cast<uintptr_t>(address), bytes, access);
}

void Machine::access(uintptr_t address, size_t bytes, emu::Access access) {
  if (stacks_.contains(address)) {
    return;
  }
  ShadowedRange* range = checker_->find(address);
  if (range == nullptr) {
    const bool own = library_->contains(address) || address - reinterpret_cast<uintptr_t>(&public_) < sizeof(public_);
    if (!own) {
      fail(checker_->describe_stray(address, bytes, access, place()));
    }
    return;
  }
  if (address + bytes > range->base_ + range->nbytes_) {
    fail(checker_->describe_stray(address, bytes, access, place()));
  }
  emu::Counters& counters = public_.counters;
  if (reads(access)) {
    (range->is_threadgroup_ ? counters.threadgroup_read_bytes : counters.device_read_bytes) += bytes;
  }
  if (writes(access)) {
    (range->is_threadgroup_ ? counters.threadgroup_written_bytes : counters.device_written_bytes) += bytes;
  }
  checker_->note(*range, address, bytes, access, place());
}

void* Machine::on_scratch(uint64_t bytes) {
  auto& scratch = active->scratch_;
  if (scratch.size() < bytes + 64) {
    scratch.resize(bytes + 64);
  }
  return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(scratch.data()) + 63) & ~uintptr_t{63});
}

void Machine::on_fail(const char* message) {
  active->fail(message);
}

Machine& the_machine() {
  static Machine machine;
  return machine;
}

} // namespace tessl::emulator
