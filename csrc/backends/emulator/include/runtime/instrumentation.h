#pragma once

#include "machine.h"

// What -fsanitize=thread makes of the kernel's loads and stores. None of the sanitizer's own runtime is linked.

#define EMU_HOOK extern "C" __attribute__((used, visibility("hidden")))

EMU_RUNTIME_BEGIN

namespace emu {
EMU_INLINE void note_access(const void* address, size_t bytes, Access access) {
  if (machine != nullptr) { // null while the host asks for constants
    machine->access(address, bytes, access, __builtin_return_address(0));
  }
}
} // namespace emu

#define EMU_HOOKS_OF(bytes)                                     \
  EMU_HOOK inline void __tsan_read##bytes(void* p) {            \
    emu::note_access(p, bytes, emu::Access::read);              \
  }                                                             \
  EMU_HOOK inline void __tsan_write##bytes(void* p) {           \
    emu::note_access(p, bytes, emu::Access::write);             \
  }                                                             \
  EMU_HOOK inline void __tsan_unaligned_read##bytes(void* p) {  \
    emu::note_access(p, bytes, emu::Access::read);              \
  }                                                             \
  EMU_HOOK inline void __tsan_unaligned_write##bytes(void* p) { \
    emu::note_access(p, bytes, emu::Access::write);             \
  }

EMU_HOOKS_OF(1)
EMU_HOOKS_OF(2)
EMU_HOOKS_OF(4)
EMU_HOOKS_OF(8)
EMU_HOOKS_OF(16)

EMU_HOOK inline void __tsan_init() {
}
EMU_HOOK inline void __tsan_func_entry(void*) {
}
EMU_HOOK inline void __tsan_func_exit() {
}

EMU_HOOK inline void* __tsan_memcpy(void* to, const void* from, size_t bytes) {
  emu::note_access(from, bytes, emu::Access::read);
  emu::note_access(to, bytes, emu::Access::write);
  return __builtin_memcpy(to, from, bytes);
}

EMU_HOOK inline void* __tsan_memmove(void* to, const void* from, size_t bytes) {
  emu::note_access(from, bytes, emu::Access::read);
  emu::note_access(to, bytes, emu::Access::write);
  return __builtin_memmove(to, from, bytes);
}

EMU_HOOK inline void* __tsan_memset(void* to, int value, size_t bytes) {
  emu::note_access(to, bytes, emu::Access::write);
  return __builtin_memset(to, value, bytes);
}

EMU_RUNTIME_END
