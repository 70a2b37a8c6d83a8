#include "launch/trace.h"

#include <atomic>
#include <mutex>
#include <stdexcept>

namespace tessl {
namespace {

std::atomic<int> open_traces{0};
std::mutex mutex;
std::vector<std::vector<TraceEntry>> traces;

void record(TraceEntry entry) {
  std::lock_guard lock(mutex);
  for (auto& trace : traces) {
    trace.push_back(entry);
  }
}

TraceEntry::LaunchRecord record_of(const Launch& launch) {
  return {
      launch.kernel->name,
      launch.kernel->family,
      to_string(launch.kernel->capability),
      launch.constants,
      launch.threadgroup_memory,
      launch.grid,
      launch.group
  };
}

} // namespace

void start_trace() {
  std::lock_guard lock(mutex);
  traces.emplace_back();
  open_traces.store(static_cast<int>(traces.size()), std::memory_order_relaxed);
}

std::vector<TraceEntry> take_trace() {
  std::lock_guard lock(mutex);
  if (traces.empty()) {
    throw std::runtime_error("[mlx_tessl.trace] no trace is being recorded");
  }
  auto entries = std::move(traces.back());
  traces.pop_back();
  open_traces.store(static_cast<int>(traces.size()), std::memory_order_relaxed);
  return entries;
}

void trace_launches(const char* op, const char* backend, const Plan& plan) {
  if (open_traces.load(std::memory_order_relaxed) == 0) {
    return;
  }
  TraceEntry entry{op, backend, {}};
  for (const auto& launch : plan.launches) {
    entry.launches.push_back(record_of(launch));
  }
  record(std::move(entry));
}

void trace_compute(const char* op) {
  if (open_traces.load(std::memory_order_relaxed) != 0) {
    record({op, "cpu", {}});
  }
}

} // namespace tessl
