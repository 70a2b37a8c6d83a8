#include "launch/self_check.h"

#include <cstdint>
#include <exception>
#include <sstream>

#include "launch/decimal.h"

namespace tessl {
namespace {

// Integers from -2 to 2, without a period that a tile or a swapped index could hide in. |sum of 64 products| <= 256,
// which bfloat16 still holds exactly.
std::vector<float> small_integers(size_t count, uint32_t state) {
  std::vector<float> values(count);
  for (auto& value : values) {
    state = state * 1664525u + 1013904223u; // Numerical Recipes' linear congruential generator
    value = static_cast<float>(static_cast<int>((state >> 16) % 5) - 2);
  }
  return values;
}

std::string number(float value) {
  std::ostringstream digits;
  digits << value;
  return digits.str();
}

} // namespace

SelfCheck::SelfCheck(int rows)
    : M(rows), a(small_integers(rows * K, 1)), b(small_integers(K * N, 2)), expected(rows * N) {
  for (int m = 0; m < M; ++m) {
    for (int k = 0; k < K; ++k) {
      for (int n = 0; n < N; ++n) {
        expected[m * N + n] += a[m * K + k] * b[k * N + n];
      }
    }
  }
}

Trust check_product(const Product& product, int rows) {
  const SelfCheck check(rows);
  std::vector<float> out;
  try {
    out = product(check.a, check.b);
  } catch (const std::exception& error) {
    return {false, std::string("the self-check could not run: ") + error.what()};
  }
  const auto count = decimal(check.expected.size());
  if (out.size() != check.expected.size()) {
    return {false, "the self-check product has " + decimal(out.size()) + " elements, not " + count};
  }
  size_t wrong = 0;
  size_t first = 0;
  for (size_t i = out.size(); i-- > 0;) {
    if (out[i] != check.expected[i]) { // a NaN is wrong too
      ++wrong;
      first = i;
    }
  }
  if (wrong == 0) {
    return {true, "the self-check product is exact"};
  }
  return {
      false,
      "the self-check product is wrong in " + decimal(wrong) + " of " + count + " elements, first in row " +
          decimal(first / SelfCheck::N) + ", column " + decimal(first % SelfCheck::N) + ": " + number(out[first]) +
          " in place of " + number(check.expected[first])
  };
}

} // namespace tessl
