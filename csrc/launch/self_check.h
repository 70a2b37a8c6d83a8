#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

namespace tessl {

// The product by which a matrix kernel earns trust on the machine it runs on: a [M, K] times b [K, N], row-contiguous.
// Kernels built against the wrong minimum OS were seen to compute rows 0 to 7 right and garbage below; K spans
// several steps of any K loop. Elements are small integers, so every format and any order of sums gives the
// same bits: the comparison needs no tolerance.
struct SelfCheck {
  static constexpr int N = 32;
  static constexpr int K = 64;

  int M; // as many rows as lead to the kernel in question
  std::vector<float> a;
  std::vector<float> b;
  std::vector<float> expected; // [M, N]

  explicit SelfCheck(int rows);
};

struct Trust {
  bool trusted = false;
  std::string reason; // one sentence without a full stop
};

inline constexpr int self_check_rows = 16;

// a and b to out [M, N].
using Product = std::function<std::vector<float>(std::span<const float> a, std::span<const float> b)>;

// Trust is refused to a product that is wrong in any element, or that throws.
Trust check_product(const Product& product, int rows = self_check_rows);

} // namespace tessl
