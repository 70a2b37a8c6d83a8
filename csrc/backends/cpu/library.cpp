#include "backends/cpu/library.h"

#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <thread>

namespace tessl::cpu {
namespace {

constinit std::atomic<int> under_way{0};
constinit std::atomic<bool> exiting{false};

void wait_for_calls() {
  exiting.store(true);
  while (under_way.load() > 0) {
    std::this_thread::yield();
  }
}

// A child of fork() has none of the threads that were computing.
[[maybe_unused]] const int fork_handler = pthread_atfork(nullptr, nullptr, [] { under_way.store(0); });

} // namespace

LibraryCall::LibraryCall() {
  under_way.fetch_add(1);
}

LibraryCall::~LibraryCall() {
  under_way.fetch_sub(1);
}

LibraryCall::operator bool() const {
  return !exiting.load();
}

void wait_for_calls_at_exit() {
  std::atexit(wait_for_calls);
}

} // namespace tessl::cpu
