#pragma once

#include "abi.h"

// Code between these is the emulator's own: its memory accesses are not the kernel's.
#define EMU_RUNTIME_BEGIN \
  _Pragma("clang attribute push(__attribute__((disable_sanitizer_instrumentation)), apply_to = function)")
#define EMU_RUNTIME_END _Pragma("clang attribute pop")

#define EMU_INLINE inline __attribute__((always_inline))
// A call that waits for other lanes: its address tells one place in the kernel from another, so the compiler must
// neither merge, duplicate nor move it across control flow.
#define EMU_CONVERGENT __attribute__((noinline, convergent, nomerge, visibility("hidden")))

extern "C" {
int printf(const char*, ...);
int snprintf(char*, size_t, const char*, ...);
}

// Raised by code that the compiler driver adds to checked kernels.
extern "C" {
inline __attribute__((used, visibility("hidden"))) uint64_t tessl_scalar_flops = 0;
}

namespace emu {

EMU_RUNTIME_BEGIN

inline __attribute__((visibility("hidden"))) Machine* machine = nullptr;

EMU_CONVERGENT inline void rendezvous(void* request, Operation operation) {
  machine->rendezvous(request, operation, __builtin_return_address(0));
}

EMU_CONVERGENT inline void rendezvous_threadgroup(void* request, Operation operation, uint32_t simdgroups) {
  machine->rendezvous_threadgroup(request, operation, __builtin_return_address(0), simdgroups);
}

EMU_CONVERGENT inline void barrier(uint32_t flags) {
  machine->barrier(flags, __builtin_return_address(0));
}

EMU_CONVERGENT inline void simdgroup_barrier(uint32_t flags) {
  machine->simdgroup_barrier(flags, __builtin_return_address(0));
}

template <typename... Values>
[[noreturn]] inline void fail(const char* format, Values... values) {
  char message[512];
  snprintf(message, sizeof(message), format, values...);
  machine->fail(message);
  __builtin_unreachable();
}

// Calls visit(lane) for each lane of a mask, in ascending order.
template <typename Visit>
EMU_INLINE void for_lanes(uint32_t mask, Visit visit) {
  for (; mask; mask &= mask - 1) {
    visit(static_cast<uint32_t>(__builtin_ctz(mask)));
  }
}

EMU_RUNTIME_END

// For debugging: whether the running thread is this one.
inline bool is_thread(uint32_t x, uint32_t y = 0, uint32_t z = 0) {
  const Index3& t = machine->thread_in_threadgroup;
  return t.x == x && t.y == y && t.z == z;
}

} // namespace emu
