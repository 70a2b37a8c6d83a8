#pragma once

#include <string>
#include <vector>

#include "launch/plan.h"

namespace tessl {

// One evaluation of one op: what ran, and where.
struct TraceEntry {
  struct LaunchRecord {
    std::string kernel;
    std::string family;
    std::string capability;
    FixedVector<FunctionConstant, 16> constants;
    uint32_t threadgroup_memory;
    Size3 grid;
    Size3 group;
  };

  std::string op;
  std::string backend;                // "metal", "emulator" or "cpu"
  std::vector<LaunchRecord> launches; // empty on the CPU
};

// A trace is process wide, since evaluation happens on MLX's own threads. Traces nest: each start_trace() opens a new
// recording and take_trace() closes the innermost.
void start_trace();
std::vector<TraceEntry> take_trace();

// Costs one relaxed load while nothing is recorded.
void trace_launches(const char* op, const char* backend, const Plan& plan);
void trace_compute(const char* op);

} // namespace tessl
