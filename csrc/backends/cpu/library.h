#pragma once

#include <atomic>

namespace tessl::cpu {

// A call into a library that frees its buffers when the process exits, while MLX's stream threads still work off what
// was queued. From then on there are no calls: nobody will read their results.
class LibraryCall {
 public:
  LibraryCall();
  ~LibraryCall();
  LibraryCall(const LibraryCall&) = delete;
  LibraryCall& operator=(const LibraryCall&) = delete;

  // Whether the library may be called while this lives.
  explicit operator bool() const;
};

// Lets the process exit only when calls under way are over. To be called after the library has made what it will free:
// what is registered last runs first.
void wait_for_calls_at_exit();

// What `open` makes at the first call. Without a lock, which a fork could leave locked for ever: opening twice gives
// the same library.
template <typename Library>
const Library& opened_once(std::atomic<const Library*>& place, Library (*open)()) {
  const Library* existing = place.load(std::memory_order_acquire);
  if (existing != nullptr) {
    return *existing;
  }
  auto* fresh = new Library(open());
  if (place.compare_exchange_strong(existing, fresh, std::memory_order_acq_rel)) {
    return *fresh;
  }
  delete fresh;
  return *existing;
}

} // namespace tessl::cpu
