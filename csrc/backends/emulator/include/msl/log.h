#pragma once

#include "../runtime/machine.h"

namespace metal {

// Messages of every kind go to stdout.
struct os_log {
  constexpr os_log(const char*, const char*) {
  }

#define EMU_LOG(name)                                     \
  template <typename... Values>                           \
  void name(const char* format, Values... values) const { \
    printf(format, values...);                            \
    printf("\n");                                         \
  }
  EMU_LOG(log)
  EMU_LOG(log_debug)
  EMU_LOG(log_info)
  EMU_LOG(log_error)
  EMU_LOG(log_fault)
#undef EMU_LOG
};

} // namespace metal
