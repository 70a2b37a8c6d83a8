// Compiled once for each instruction set: see vectors.h.

#include "backends/cpu/attention_kernels.h"

#include "backends/cpu/transpose.h"
#include "backends/cpu/vector_math.h"

namespace tessl::cpu::TESSL_CPU_ISA {
namespace {

// As many sums as the registers hold beside a row of b and an element of a.
#if defined(__AVX512F__)
constexpr int rows = 12;
constexpr int width = 2;
#elif defined(__aarch64__)
constexpr int rows = 6;
constexpr int width = 4;
#else
constexpr int rows = 6;
constexpr int width = 2;
#endif
constexpr int columns = width * lanes;
static_assert(96 % rows == 0 && 96 % columns == 0);

constexpr float infinity = __builtin_inff();

template <bool Accumulate>
TESSL_INLINE void multiply_panel(const PanelProduct& p, float* c, const float* b) {
  Floats sums[rows][width] = {};
  if constexpr (Accumulate) {
    for (int r = 0; r < rows; ++r) {
      for (int j = 0; j < width; ++j) {
        sums[r][j] = read<Floats>(c + r * p.c_stride + j * lanes);
      }
    }
  }
  const float* a = p.a;
  for (int64_t k = 0; k < p.depth; ++k) {
    Floats b_row[width];
    for (int j = 0; j < width; ++j) {
      b_row[j] = read<Floats>(b + j * lanes);
    }
    for (int r = 0; r < rows; ++r) {
      const float x = a[r * p.a_row_stride];
      for (int j = 0; j < width; ++j) {
        sums[r][j] += x * b_row[j];
      }
    }
    a += p.a_depth_stride;
    b += p.b_depth_stride;
  }
  for (int r = 0; r < rows; ++r) {
    for (int j = 0; j < width; ++j) {
      write(c + r * p.c_stride + j * lanes, sums[r][j]);
    }
  }
}

void multiply(const PanelProduct& p) {
  for (int64_t i = 0; i < p.panels; ++i) {
    float* c = p.c + i * columns;
    const float* b = p.b + i * p.b_panel_stride;
    if (p.accumulate) {
      multiply_panel<true>(p, c, b);
    } else {
      multiply_panel<false>(p, c, b);
    }
  }
}

void multiply_nonzero(const PanelProduct& p) {
  for (int64_t i = 0; i < p.panels; ++i) {
    for (int r = 0; r < rows; ++r) {
      float* c = p.c + r * p.c_stride + i * columns;
      for (int64_t k = 0; k < p.depth; ++k) {
        const float x = p.a[r * p.a_row_stride + k * p.a_depth_stride];
        const float* b = p.b + i * p.b_panel_stride + k * p.b_depth_stride;
        for (int j = 0; x != 0.0f && j < width; ++j) {
          write(c + j * lanes, read<Floats>(c + j * lanes) + x * read<Floats>(b + j * lanes));
        }
      }
    }
  }
}

void pack_transposed(float* panel, const float* source, int64_t stride, int64_t count, int64_t depth) {
  if (count < columns) {
    std::memset(panel, 0, static_cast<size_t>(depth * columns) * sizeof(float));
  }
  const int64_t whole_rows = count / lanes * lanes;
  const int64_t whole_depth = depth / lanes * lanes;
  for (int64_t r = 0; r < whole_rows; r += lanes) {
    for (int64_t d = 0; d < whole_depth; d += lanes) {
      Floats block[lanes];
      for (int i = 0; i < lanes; ++i) {
        block[i] = read<Floats>(source + (r + i) * stride + d);
        __builtin_prefetch(source + (r + i + (r + lanes < whole_rows ? lanes : 0)) * stride + d);
      }
      transpose(block);
      for (int i = 0; i < lanes; ++i) {
        write(panel + (d + i) * columns + r, block[i]);
      }
    }
  }
  for (int64_t r = 0; r < count; ++r) {
    for (int64_t d = r < whole_rows ? whole_depth : 0; d < depth; ++d) {
      panel[d * columns + r] = source[r * stride + d];
    }
  }
}

// 0 for finite elements, else NaN.
TESSL_INLINE Floats not_finite(Floats x) {
  return 0.0f * x;
}

bool all_finite(const float* x, int64_t count) {
  Floats found{};
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    found += not_finite(read<Floats>(x + i));
  }
  if (i < count) {
    found += not_finite(load_first(x + i, count - i));
  }
  return sum_lanes(found) == 0.0f;
}

// Rows of a head stand a token apart, often on pages of their own: the CPU's own prefetching does not find the next.
constexpr int64_t rows_ahead = 8;

template <typename T>
TESSL_INLINE void fetch(const T* row) {
  constexpr int64_t cache_line = 64 / sizeof(T);
  __builtin_prefetch(row);
  __builtin_prefetch(row + cache_line);
}

template <typename T>
bool copy_rows_of(const RowsCopy& copy) {
  Floats found{};
  const auto* row = static_cast<const T*>(copy.source);
  float* target = copy.target;
  for (int64_t n = 0; n < copy.count; ++n, row += copy.source_stride, target += copy.target_stride) {
    fetch(row + rows_ahead * copy.source_stride);
    int64_t i = 0;
    for (; i + lanes <= copy.columns; i += lanes) {
      const Floats x = load(row + i);
      found += not_finite(x);
      write(target + i, copy.factor * x);
    }
    if (i < copy.columns) {
      const Floats x = load_first(row + i, copy.columns - i);
      found += not_finite(x);
      const Floats scaled = copy.factor * x;
      std::memcpy(target + i, &scaled, static_cast<size_t>(copy.columns - i) * sizeof(float));
    }
    for (i = copy.columns; i < copy.width; ++i) {
      target[i] = 0.0f;
    }
  }
  return sum_lanes(found) == 0.0f;
}

bool copy_rows(const RowsCopy& copy) {
  bool finite = false;
  with_type(copy.element, [&](auto type) { finite = copy_rows_of<decltype(type)>(copy); });
  return finite;
}

TESSL_INLINE Ints lane_numbers() {
  Ints numbers;
  for (int i = 0; i < lanes; ++i) {
    numbers[i] = i;
  }
  return numbers;
}

// The row's scores from column c on, -infinity where they are not seen. `capped` is tanh of the products.
TESSL_INLINE Floats seen_scores(const ScoreRow& row, int64_t c, Floats* capped) {
  Floats x = read<Floats>(row.scores + c) * row.scale;
  if (row.cap != 0.0f) {
    *capped = tanh(x);
    x = row.cap * *capped;
  }
  if (row.bias != nullptr) {
    const Floats bias = read<Floats>(row.bias + c);
    x = bias == -infinity ? bias : x + bias;
  }
  if (c < row.begin || c + lanes > row.end) {
    const Ints column = lane_numbers() + static_cast<int32_t>(c);
    const Ints hidden = (column < static_cast<int32_t>(row.begin)) | (column >= static_cast<int32_t>(row.end));
    x = hidden ? splat(-infinity) : x;
  }
  return x;
}

// Columns of a row whose scores are as they are computed, all of them seen; whole vectors.
struct Interior {
  int64_t begin;
  int64_t end;

  explicit Interior(const ScoreRow& row) {
    const bool plain = row.scale == 1.0f && row.cap == 0.0f && row.bias == nullptr;
    begin = row.begin <= row.first ? row.first : row.first + (row.begin - row.first + lanes - 1) / lanes * lanes;
    begin = begin < row.last ? begin : row.last;
    end = row.end >= row.last ? row.last : row.first + (row.end - row.first) / lanes * lanes;
    end = plain && begin < end ? end : begin;
  }
};

TESSL_INLINE Floats larger(Floats x, Floats y) {
  return x < y ? y : x;
}

float soften(ScoreRow row, float& most, float& sum) {
  const Interior interior(row);
  Floats greatest = splat(most);
  const auto edge = [&](int64_t begin, int64_t end) {
    Floats unused;
    for (int64_t c = begin; c < end; c += lanes) {
      const Floats x = seen_scores(row, c, &unused);
      write(row.scores + c, x);
      greatest = larger(greatest, x);
    }
  };
  edge(row.first, interior.begin);
  Floats others = greatest;
  int64_t c = interior.begin;
  for (; c + 2 * lanes <= interior.end; c += 2 * lanes) {
    greatest = larger(greatest, read<Floats>(row.scores + c));
    others = larger(others, read<Floats>(row.scores + c + lanes));
  }
  edge(c, row.last);
  greatest = larger(greatest, others);
  const float new_most = largest_lane(greatest);
  // With nothing seen yet, weights are 2^-infinity.
  const float base = new_most == -infinity ? 0.0f : new_most;
  Floats total{};
  for (int64_t c = row.first; c < row.last; c += lanes) {
    const Floats weight = exp2_of_negative(read<Floats>(row.scores + c) - base);
    write(row.scores + c, weight);
    total += weight;
  }
  // Before the first score all sums are 0.
  const float factor = most == new_most || most == -infinity ? 1.0f : exp2_of_negative(splat(most - base))[0];
  sum = sum * factor + sum_lanes(total);
  most = new_most;
  return factor;
}

void soften_gradient(ScoreRow row, float most, float inverse, float mean, float factor, bool by_bias, float* slopes) {
  for (int64_t c = row.first; c < row.last; c += lanes) {
    Floats capped{};
    const Floats x = seen_scores(row, c, &capped);
    const Floats exponent = x - most; // above 0 by rounding alone, which an additive mask can make coarse
    const Floats weight = inverse * exp2_of_negative(exponent > 0.0f ? Floats{} : exponent);
    Floats slope = factor * weight * (read<Floats>(slopes + c) - mean);
    if (row.cap != 0.0f && !by_bias) {
      slope *= 1.0f - capped * capped;
    }
    write(row.scores + c, weight);
    write(slopes + c, x == -infinity ? Floats{} : slope);
  }
}

} // namespace

extern const AttentionKernels attention;
const AttentionKernels attention = {
    rows, columns, multiply, multiply_nonzero, pack_transposed, copy_rows, all_finite, soften, soften_gradient
};

} // namespace tessl::cpu::TESSL_CPU_ISA
