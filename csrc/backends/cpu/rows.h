#pragma once

#include <algorithm>
#include <cstdint>

#include "backends/cpu/elements.h"
#include "backends/cpu/scratch.h"
#include "backends/cpu/thread_pool.h"
#include "backends/cpu/vector_kernels.h"
#include "launch/rows.h"

namespace tessl::cpu {

// Rows to read. Null data is an absent operand.
struct RowsInput {
  const void* data = nullptr;
  Element element = Element::float32;
  RowSource source;

  explicit operator bool() const {
    return data != nullptr;
  }

  // `count` elements from `index` on, along the columns, in float32: in place where they are that, else in `scratch`,
  // which has room for `count`.
  const float* at(int64_t index, int64_t count, float* scratch) const;

  // `count` elements of row `row` from `column` on, as at().
  const float* read(const Rows& rows, int64_t row, int64_t column, int64_t count, float* scratch) const;
};

// Rows to write, contiguous.
struct RowsOutput {
  void* data = nullptr;
  Element element = Element::float32;

  void* at(int64_t index) const {
    return static_cast<char*>(data) + index * size_of(element);
  }

  // Where to compute elements from `index` on: in place if they are float32, else in `scratch`.
  float* target(int64_t index, float* scratch) const {
    return element == Element::float32 ? static_cast<float*>(data) + index : scratch;
  }

  // Rounds what was computed at target(index, ...).
  void finish(int64_t index, const float* computed, int64_t count) const {
    if (element != Element::float32) {
      vector_kernels().rows->store(element, at(index), computed, count);
    }
  }
};

// Elements a task takes at least: waking a thread costs about as much as to pass over so many.
constexpr int64_t min_task_elements = 16 * 1024;

// Scratch memory of this thread for the rows of one task.
float* row_scratch(int64_t count);

// Calls f(first, last) for ranges that cover [0, count), on the threads of the pool; an item passes over `cost`
// elements.
template <typename Function>
void for_ranges(int64_t count, int64_t cost, Function f) {
  const int64_t grain = std::max<int64_t>(1, min_task_elements / std::max<int64_t>(1, cost));
  const int64_t tasks = (count + grain - 1) / grain;
  ThreadPool::instance().parallel_for(tasks, [&](int64_t task) {
    f(task * grain, std::min(count, (task + 1) * grain));
  });
}

} // namespace tessl::cpu
