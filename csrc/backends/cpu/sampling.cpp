#include "backends/cpu/sampling.h"

#include <bit>
#include <cmath>
#include <limits>

namespace tessl::cpu {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr uint32_t sign = 0x80000000u;

// Unsigned integers in the order of floats.
uint32_t order_of(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return (bits & sign) != 0 ? ~bits : bits | sign;
}

float from_order(uint32_t order) {
  return std::bit_cast<float>((order & sign) != 0 ? order & ~sign : ~order);
}

// The greatest float for which `enough`, which holds for minus infinity and for no float above one for which it fails.
template <typename Enough>
float greatest_for_which(Enough enough) {
  uint32_t low = order_of(-infinity);
  uint32_t high = order_of(infinity);
  while (low < high) {
    const uint32_t middle = low + (high - low + 1) / 2;
    if (enough(from_order(middle))) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return from_order(low);
}

void score(const Sampling& work, float* z, int64_t N) {
  if (work.softcap) {
    for (int64_t i = 0; i < N; ++i) {
      z[i] = *work.softcap * std::tanh(z[i] / *work.softcap);
    }
  }
  const float temperature = work.temperature.value_or(1.0f);
  for (int64_t i = 0; i < N; ++i) {
    const float scaled = z[i] / temperature;
    z[i] = scaled == scaled ? scaled : -infinity;
  }
}

float least_of_top(const Sampling& work, const float* z, float* weights, int64_t N) {
  const RowKernels& kernels = *vector_kernels().rows;
  float least = -infinity;
  if (work.top_k) {
    least = greatest_for_which([&](float t) { return kernels.count_from(z, t, N) >= *work.top_k; });
  }
  if (work.top_p) {
    kernels.exponentials(weights, z, kernels.max(z, N), N);
    const float target = *work.top_p * kernels.mass_from(z, weights, least, N);
    const float nucleus =
        greatest_for_which([&](float t) { return t <= least || kernels.mass_from(z, weights, t, N) >= target; });
    least = std::max(least, nucleus);
  }
  return least;
}

uint32_t draw(const Sampling& work, int64_t row) {
  const int64_t N = work.rows.columns;
  float* z = row_scratch(3 * N);
  float* other = z + N;
  const float* logits = work.logits.read(work.rows, row, 0, N, z);
  if (logits != z) {
    std::copy(logits, logits + N, z);
  }
  score(work, z, N);
  const float least = least_of_top(work, z, other, N);
  if (work.noise) {
    const float* noise = work.noise.read(work.rows, row, 0, N, other);
    for (int64_t i = 0; i < N; ++i) {
      z[i] = z[i] >= least ? z[i] + noise[i] : -infinity;
    }
  }
  const float most = vector_kernels().rows->max(z, N);
  return most == -infinity ? 0 : static_cast<uint32_t>(std::find(z, z + N, most) - z);
}

} // namespace

void sample(const Sampling& work) {
  for_ranges(work.rows.count(), work.rows.columns, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      work.out[row] = draw(work, row);
    }
  });
}

} // namespace tessl::cpu
