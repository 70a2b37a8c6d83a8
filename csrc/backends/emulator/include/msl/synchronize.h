#pragma once

#include "../runtime/machine.h"

namespace metal {

enum class mem_flags : uint {
  mem_none = emu::barrier_none,
  mem_device = emu::barrier_device,
  mem_threadgroup = emu::barrier_threadgroup,
  mem_texture = 4,
  mem_threadgroup_imageblock = 8,
  mem_object_data = 16,
};
constexpr mem_flags operator|(mem_flags a, mem_flags b) {
  return static_cast<mem_flags>(static_cast<uint>(a) | static_cast<uint>(b));
}

enum memory_order {
  memory_order_relaxed,
  memory_order_acquire,
  memory_order_release,
  memory_order_acq_rel,
  memory_order_seq_cst,
};
enum thread_scope {
  thread_scope_thread,
  thread_scope_simdgroup,
  thread_scope_threadgroup,
  thread_scope_device,
  thread_scope_system,
};

EMU_INLINE void threadgroup_barrier(mem_flags flags) {
  emu::barrier(static_cast<uint>(flags));
}
EMU_INLINE void threadgroup_barrier(mem_flags flags, memory_order, thread_scope = thread_scope_threadgroup) {
  emu::barrier(static_cast<uint>(flags));
}
EMU_INLINE void simdgroup_barrier(mem_flags flags) {
  emu::simdgroup_barrier(static_cast<uint>(flags));
}
EMU_INLINE void simdgroup_barrier(mem_flags flags, memory_order, thread_scope = thread_scope_simdgroup) {
  emu::simdgroup_barrier(static_cast<uint>(flags));
}
// Threads are switched only where they wait, so memory is always up to date.
inline void atomic_thread_fence(mem_flags, memory_order, thread_scope = thread_scope_device) {
}

} // namespace metal
