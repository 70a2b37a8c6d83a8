#include "backends/cpu/thread_pool.h"

#include <pthread.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>

#include "backends/cpu/cpu_count.h"
#include "launch/decimal.h"

namespace tessl::cpu {
namespace {

// Long enough to bridge the gap between two ops of one evaluation, too short to take a CPU from another pool.
constexpr auto spin_time = std::chrono::microseconds(30);

constexpr int max_threads = 1024;

int configured_size() {
  const char* text = std::getenv("MLX_TESSL_NUM_THREADS");
  if (text == nullptr || *text == '\0') {
    return std::min(available_cpus(), max_threads);
  }
  int size = 0;
  const char* end = text + std::strlen(text);
  const auto [rest, error] = std::from_chars(text, end, size);
  if (error != std::errc() || rest != end || size < 1 || size > max_threads) {
    throw std::invalid_argument(
        "[mlx_tessl] MLX_TESSL_NUM_THREADS is \"" + std::string(text) + "\"; expected a whole number from 1 to " +
        decimal(max_threads) + "."
    );
  }
  return size;
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

constinit std::atomic<ThreadPool*> pool{nullptr};

// The parent's threads do not exist in a child and may have held its locks: the child never touches that pool.
[[maybe_unused]] const int fork_handler =
    pthread_atfork(nullptr, nullptr, [] { pool.store(nullptr, std::memory_order_release); });

// Spins until `condition` holds or the time is over.
template <typename Condition>
void spin_until(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + spin_time;
  do {
    for (int i = 0; i < 32; ++i) {
      if (condition()) {
        return;
      }
      relax();
    }
  } while (std::chrono::steady_clock::now() < end);
}

} // namespace

ThreadPool& ThreadPool::instance() {
  auto* existing = pool.load(std::memory_order_acquire);
  if (existing != nullptr) {
    return *existing;
  }
  auto* fresh = new ThreadPool(configured_size());
  if (pool.compare_exchange_strong(existing, fresh, std::memory_order_acq_rel)) {
    return *fresh;
  }
  delete fresh;
  return *existing;
}

void ThreadPool::run(Job& job) {
  if (job.count == 1 || size_ == 1) {
    for (int64_t i = 0; i < job.count; ++i) {
      job.call(job.context, i);
    }
    return;
  }
  if (job.count <= 0) {
    return;
  }
  {
    std::lock_guard lock(mutex_);
    start_workers();
    open_jobs_.push_back(&job);
    open_count_.store(static_cast<int>(open_jobs_.size()), std::memory_order_release);
  }
  const auto wanted = std::min<int64_t>(job.count, size_) - 1;
  for (int64_t i = 0; i < wanted; ++i) {
    job_opened_.notify_one();
  }
  take_part(job);

  spin_until([&] { return job.helpers.load(std::memory_order_relaxed) == 0; });
  std::unique_lock lock(mutex_);
  close(job);
  helper_left_.wait(lock, [&] { return job.helpers == 0; });
  if (job.error) {
    std::rethrow_exception(job.error);
  }
}

void ThreadPool::take_part(Job& job) {
  try {
    for (int64_t i; (i = job.next.fetch_add(1, std::memory_order_relaxed)) < job.count;) {
      job.call(job.context, i);
    }
  } catch (...) {
    job.next.store(job.count, std::memory_order_relaxed);
    std::lock_guard lock(mutex_);
    if (!job.error) {
      job.error = std::current_exception();
    }
  }
}

// Called with mutex_ held. A thread that the system refuses is done without: the caller always takes part.
void ThreadPool::start_workers() {
  if (started_) {
    return;
  }
  started_ = true;
  for (int i = 1; i < size_; ++i) {
    try {
      new std::thread(&ThreadPool::work, this); // like the pool, never destroyed
    } catch (const std::exception&) {
      return;
    }
  }
}

void ThreadPool::work() {
  for (;;) {
    Job* job = join_job();
    take_part(*job);
    leave(*job);
  }
}

ThreadPool::Job* ThreadPool::join_job() {
  spin_until([this] { return open_count_.load(std::memory_order_relaxed) > 0; });
  std::unique_lock lock(mutex_);
  job_opened_.wait(lock, [this] { return !open_jobs_.empty(); });
  Job* job = open_jobs_.front();
  ++job->helpers;
  return job;
}

// Its caller may destroy the job as soon as the lock is released.
void ThreadPool::leave(Job& job) {
  std::lock_guard lock(mutex_);
  close(job);
  if (--job.helpers == 0) {
    helper_left_.notify_all();
  }
}

// Called with mutex_ held, when no index is left.
void ThreadPool::close(Job& job) {
  std::erase(open_jobs_, &job);
  open_count_.store(static_cast<int>(open_jobs_.size()), std::memory_order_release);
}

} // namespace tessl::cpu
