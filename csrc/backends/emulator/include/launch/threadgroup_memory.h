#pragma once

#include "../runtime/machine.h"

namespace emu {

EMU_RUNTIME_BEGIN

// Where one `threadgroup` declaration lies in the threadgroup's memory.
struct ThreadgroupPlace {
  uint64_t launch;
  uint64_t offset;
};

template <typename T>
EMU_INLINE T& threadgroup_variable(ThreadgroupPlace& place, const char* name) {
  if (place.launch != machine->launch) {
    place.launch = machine->launch;
    place.offset = machine->declare_threadgroup_memory(name, sizeof(T), alignof(T));
  }
  return *reinterpret_cast<T*>(machine->threadgroup_memory + place.offset);
}

EMU_RUNTIME_END

} // namespace emu
