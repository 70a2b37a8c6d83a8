#include "backends/cpu/heap.h"

#include <cstdlib>

namespace tessl::cpu {

// The threshold is twice the largest block, up to 32 MiB, that was ever mapped by itself and freed (mallopt(3),
// M_MMAP_THRESHOLD). This one is never touched.
void keep_freed_memory() {
#if defined(__GLIBC__)
  constexpr size_t largest_that_counts = 32 * 1024 * 1024 - 64 * 1024;
  void* volatile block = std::malloc(largest_that_counts);
  std::free(block);
#endif
}

} // namespace tessl::cpu
