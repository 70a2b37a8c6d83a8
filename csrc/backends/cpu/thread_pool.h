#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <type_traits>
#include <vector>

namespace tessl::cpu {

// The one thread pool of the process. Threads start with the first job and sleep between jobs; a child of fork() gets a
// pool of its own. It is never destroyed: streams may still compute while the process exits.
class ThreadPool {
 public:
  // Throws std::invalid_argument when MLX_TESSL_NUM_THREADS is set and not a count.
  static ThreadPool& instance();

  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Threads that work on a job, its caller included.
  int size() const {
    return size_;
  }

  // Calls body(i) once for every i in [0, count), in any order, and returns when all are done. Indices are handed out
  // one by one, so that a thread which lost its CPU to another program delays one index and not a share of them. Any
  // number of threads may call at once, also from within a body: each works on its own job, helped by whoever is free.
  // After a body has thrown, indices not yet begun are left out and the first exception is rethrown.
  template <typename Body>
  void parallel_for(int64_t count, Body&& body) {
    using Callable = std::remove_reference_t<Body>;
    Job job;
    job.count = count;
    job.context = const_cast<void*>(static_cast<const void*>(std::addressof(body)));
    job.call = [](void* context, int64_t index) { (*static_cast<Callable*>(context))(index); };
    run(job);
  }

 private:
  struct Job {
    void (*call)(void* context, int64_t index) = nullptr;
    void* context = nullptr;
    int64_t count = 0;
    std::atomic<int64_t> next{0};
    std::atomic<int> helpers{0}; // workers inside; changed under mutex_
    std::exception_ptr error;    // guarded by mutex_
  };

  explicit ThreadPool(int size) : size_(size) {
  }

  void run(Job& job);
  void take_part(Job& job);
  void start_workers();
  void work();
  Job* join_job();
  void leave(Job& job);
  void close(Job& job);

  const int size_;
  std::mutex mutex_;
  std::condition_variable job_opened_;
  std::condition_variable helper_left_;
  std::vector<Job*> open_jobs_;    // those that may have indices left; guarded by mutex_
  std::atomic<int> open_count_{0}; // open_jobs_.size(), for threads that spin
  bool started_ = false;           // guarded by mutex_
};

} // namespace tessl::cpu
