#pragma once

#include "machine.h"

// What -fsanitize=thread makes of the kernel's loads and stores. None of the sanitizer's own runtime is linked.

#define EMU_HOOK extern "C" __attribute__((used, visibility("hidden")))

EMU_RUNTIME_BEGIN

#define EMU_HOOKS_OF(bytes)                                                              \
  EMU_HOOK inline void __tsan_read##bytes(void* p) {                                     \
    emu::machine->access(p, bytes, emu::Access::read, __builtin_return_address(0));      \
  }                                                                                      \
  EMU_HOOK inline void __tsan_write##bytes(void* p) {                                    \
    emu::machine->access(p, bytes, emu::Access::write, __builtin_return_address(0));     \
  }                                                                                      \
  EMU_HOOK inline void __tsan_unaligned_read##bytes(void* p) {                           \
    emu::machine->access(p, bytes, emu::Access::read, __builtin_return_address(0));      \
  }                                                                                      \
  EMU_HOOK inline void __tsan_unaligned_write##bytes(void* p) {                          \
    emu::machine->access(p, bytes, emu::Access::write, __builtin_return_address(0));     \
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
  emu::machine->access(from, bytes, emu::Access::read, __builtin_return_address(0));
  emu::machine->access(to, bytes, emu::Access::write, __builtin_return_address(0));
  return __builtin_memcpy(to, from, bytes);
}

EMU_HOOK inline void* __tsan_memmove(void* to, const void* from, size_t bytes) {
  emu::machine->access(from, bytes, emu::Access::read, __builtin_return_address(0));
  emu::machine->access(to, bytes, emu::Access::write, __builtin_return_address(0));
  return __builtin_memmove(to, from, bytes);
}

EMU_HOOK inline void* __tsan_memset(void* to, int value, size_t bytes) {
  emu::machine->access(to, bytes, emu::Access::write, __builtin_return_address(0));
  return __builtin_memset(to, value, bytes);
}

EMU_RUNTIME_END
