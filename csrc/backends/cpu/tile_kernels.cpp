// Compiled once for each instruction set: see vectors.h.

#include "backends/cpu/tile_kernels.h"

#include "backends/cpu/transpose.h"

namespace tessl::cpu::TESSL_CPU_ISA {

namespace {

// Sums that fill the registers: 12 vectors of 16 registers, 24 of 32. Beside them a step of k needs three vectors of b
// and one of a.
#if defined(__AVX512F__) || defined(__ARM_NEON)
constexpr int tile_rows = 8;
#else
constexpr int tile_rows = 4;
#endif
constexpr int tile_vectors = 3;
constexpr int tile_columns = tile_vectors * lanes;

// A panel is larger than L1 where vectors are this long: steps of k that it is fetched ahead from L2.
constexpr int64_t steps_ahead = 4;
constexpr bool fetches_ahead = lanes == 16;

// How much of a strided row is gathered at once.
constexpr int64_t chunk = 128;

template <typename T>
TESSL_INLINE const T* at(const void* source, int64_t index) {
  return static_cast<const T*>(source) + index;
}

// target[k * width + i] = rows[i][k] for k < count: whole cache lines are read and written.
template <typename T>
TESSL_INLINE void interleave(float* target, int64_t width, const T* const (&rows)[lanes], int64_t count) {
  for (int64_t k = 0; k < count; k += lanes) {
    const int64_t size = count - k < lanes ? count - k : lanes;
    Floats block[lanes];
    for (int i = 0; i < lanes; ++i) {
      block[i] = size == lanes ? load(rows[i] + k) : load_first(rows[i] + k, size);
    }
    transpose(block);
    for (int64_t i = 0; i < size; ++i) {
      store(target + (k + i) * width, block[i]);
    }
  }
}

// The place of the row `first + i`; past the last row it is repeated.
TESSL_INLINE int64_t row_at(int64_t first, int64_t i, int64_t count) {
  return first + i < count ? first + i : count - 1;
}

template <typename T>
void pack_contiguous(float* panel, int64_t width, const T* source, int64_t row_stride, int64_t count, int64_t K) {
  for (int64_t first = 0; first < width; first += lanes) {
    const T* rows[lanes];
    for (int i = 0; i < lanes; ++i) {
      rows[i] = source + row_at(first, i, count) * row_stride;
    }
    interleave(panel + first, width, rows, K);
  }
}

template <typename T>
void pack_strided(
    float* panel, int64_t width, const T* source, int64_t row_stride, int64_t k_stride, int64_t count, int64_t K
) {
  T gathered[lanes][chunk];
  const T* rows[lanes];
  for (int i = 0; i < lanes; ++i) {
    rows[i] = gathered[i];
  }
  for (int64_t first = 0; first < width; first += lanes) {
    for (int64_t k = 0; k < K; k += chunk) {
      const int64_t size = K - k < chunk ? K - k : chunk;
      for (int i = 0; i < lanes; ++i) {
        const T* row = source + row_at(first, i, count) * row_stride + k * k_stride;
        for (int64_t j = 0; j < size; ++j) {
          gathered[i][j] = row[j * k_stride];
        }
      }
      interleave(panel + k * width + first, width, rows, size);
    }
  }
}

// Rows that stand side by side already.
template <typename T>
void pack_columns(float* panel, int64_t width, const T* source, int64_t k_stride, int64_t count, int64_t K) {
  const int64_t whole = count / lanes * lanes;
  for (int64_t k = 0; k < K; ++k) {
    const T* row = source + k * k_stride;
    float* target = panel + k * width;
    for (int64_t i = 0; i < whole; i += lanes) {
      store(target + i, load(row + i));
    }
    if (whole < count) {
      store(target + whole, load_first(row + whole, count - whole));
    }
  }
}

void pack(
    Element element,
    float* panel,
    int64_t width,
    const void* source,
    int64_t row_stride,
    int64_t k_stride,
    int64_t count,
    int64_t K
) {
  with_type(element, [&](auto type) {
    const auto* rows = at<decltype(type)>(source, 0);
    if (k_stride == 1) {
      pack_contiguous(panel, width, rows, row_stride, count, K);
    } else if (row_stride == 1) {
      pack_columns(panel, width, rows, k_stride, count, K);
    } else {
      pack_strided(panel, width, rows, row_stride, k_stride, count, K);
    }
  });
}

struct Rows {
  const float* at[tile_rows];
};

// Past the last row it is repeated, so that nothing is read that is not there.
TESSL_INLINE Rows rows_of(const float* a, int64_t ld_a, int64_t M) {
  Rows rows;
  for (int64_t m = 0; m < tile_rows; ++m) {
    rows.at[m] = a + (m < M ? m : M - 1) * ld_a;
  }
  return rows;
}

void multiply_tile(float* sums, int64_t ld_sums, const Rows& a, const float* b, int64_t K, bool accumulate) {
  // The sums are needed last: their way from memory is hidden behind the products.
  for (int m = 0; m < tile_rows; ++m) {
    __builtin_prefetch(sums + m * ld_sums, 1);
    __builtin_prefetch(sums + m * ld_sums + tile_columns - 1, 1);
  }
  Floats tile[tile_rows][tile_vectors] = {};
  for (int64_t k = 0; k < K; ++k) {
    Floats b_values[tile_vectors];
#pragma GCC unroll 3
    for (int n = 0; n < tile_vectors; ++n) {
      b_values[n] = read<Floats>(b + k * tile_columns + n * lanes);
      if constexpr (fetches_ahead) {
        __builtin_prefetch(b + (k + steps_ahead) * tile_columns + n * lanes);
      }
    }
#pragma GCC unroll 8
    for (int m = 0; m < tile_rows; ++m) {
      const Floats a_value = splat(a.at[m][k]);
#pragma GCC unroll 3
      for (int n = 0; n < tile_vectors; ++n) {
        tile[m][n] += a_value * b_values[n];
      }
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < tile_rows; ++m) {
#pragma GCC unroll 3
    for (int n = 0; n < tile_vectors; ++n) {
      float* target = sums + m * ld_sums + n * lanes;
      store(target, accumulate ? read<Floats>(target) + tile[m][n] : tile[m][n]);
    }
  }
}

void multiply(
    float* sums,
    int64_t ld_sums,
    const float* a,
    int64_t ld_a,
    const float* b,
    int64_t M,
    int64_t N,
    int64_t K,
    bool accumulate
) {
  const Rows rows = rows_of(a, ld_a, M);
  if (M == tile_rows && N == tile_columns) {
    multiply_tile(sums, ld_sums, rows, b, K, accumulate);
    return;
  }
  alignas(64) float whole[tile_rows * tile_columns];
  multiply_tile(whole, tile_columns, rows, b, K, false);
  for (int64_t m = 0; m < M; ++m) {
    for (int64_t n = 0; n < N; ++n) {
      float& sum = sums[m * ld_sums + n];
      sum = accumulate ? sum + whole[m * tile_columns + n] : whole[m * tile_columns + n];
    }
  }
}

} // namespace

extern const TileKernels tiles;
const TileKernels tiles = {tile_rows, tile_columns, pack, multiply};

} // namespace tessl::cpu::TESSL_CPU_ISA
