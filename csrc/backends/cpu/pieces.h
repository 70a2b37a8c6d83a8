#pragma once

#include <algorithm>
#include <cstdint>

namespace tessl::cpu {

struct Range {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const {
    return end - begin;
  }
};

inline int64_t ceil_div(int64_t x, int64_t y) {
  return (x + y - 1) / y;
}

// Calls f(Range) for each piece of `whole`.
template <typename Function>
void for_each_piece(Range whole, int64_t length, Function f) {
  for (int64_t begin = whole.begin; begin < whole.end; begin += length) {
    f(Range{begin, std::min(begin + length, whole.end)});
  }
}

} // namespace tessl::cpu
