// Compiled once for each instruction set: see vectors.h.

#include "backends/cpu/tile_kernels.h"

#include "backends/cpu/vector_kernels.h"
#include "backends/cpu/vectors.h"

namespace tessl::cpu::TESSL_CPU_ISA {

extern const VectorKernels kernels;

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

// Rows that are interleaved at once, and how far: a panel's part stays in L1 until it is whole.
constexpr int group = 4;
constexpr int64_t chunk = 128;
static_assert(tile_columns % group == 0);

typedef float Quad __attribute__((vector_size(group * 4)));

// target[k * width + i] = rows[i][k].
TESSL_INLINE void interleave(float* target, int64_t width, const float* const* rows, int64_t count) {
  int64_t k = 0;
  for (; k + group <= count; k += group) {
    const Quad r0 = read<Quad>(rows[0] + k);
    const Quad r1 = read<Quad>(rows[1] + k);
    const Quad r2 = read<Quad>(rows[2] + k);
    const Quad r3 = read<Quad>(rows[3] + k);
    const Quad low02 = __builtin_shufflevector(r0, r2, 0, 4, 1, 5);
    const Quad low13 = __builtin_shufflevector(r1, r3, 0, 4, 1, 5);
    const Quad high02 = __builtin_shufflevector(r0, r2, 2, 6, 3, 7);
    const Quad high13 = __builtin_shufflevector(r1, r3, 2, 6, 3, 7);
    write(target + k * width, __builtin_shufflevector(low02, low13, 0, 4, 1, 5));
    write(target + (k + 1) * width, __builtin_shufflevector(low02, low13, 2, 6, 3, 7));
    write(target + (k + 2) * width, __builtin_shufflevector(high02, high13, 0, 4, 1, 5));
    write(target + (k + 3) * width, __builtin_shufflevector(high02, high13, 2, 6, 3, 7));
  }
  for (; k < count; ++k) {
    for (int i = 0; i < group; ++i) {
      target[k * width + i] = rows[i][k];
    }
  }
}

TESSL_INLINE const char* at(const void* source, Element element, int64_t index) {
  return static_cast<const char*>(source) + index * (element == Element::float32 ? 4 : 2);
}

// Rows whose elements stand apart by `k_stride`: four at a time.
void pack_rows(
    Element element,
    float* panel,
    int64_t width,
    const void* source,
    int64_t row_stride,
    int64_t k_stride,
    int64_t count,
    int64_t K
) {
  alignas(64) float converted[group][chunk];
  alignas(64) static const float zeros[chunk] = {};
  for (int64_t k = 0; k < K; k += chunk) {
    const int64_t size = K - k < chunk ? K - k : chunk;
    for (int64_t first = 0; first < width; first += group) {
      const float* rows[group];
      for (int i = 0; i < group; ++i) {
        const char* row = at(source, element, (first + i) * row_stride + k * k_stride);
        if (first + i >= count) {
          rows[i] = zeros;
        } else if (element == Element::float32 && k_stride == 1) {
          rows[i] = reinterpret_cast<const float*>(row);
        } else {
          kernels.load(element, converted[i], row, k_stride, size);
          rows[i] = converted[i];
        }
      }
      interleave(panel + k * width + first, width, rows, size);
    }
  }
}

// Rows that stand side by side already.
void pack_columns(
    Element element, float* panel, int64_t width, const void* source, int64_t k_stride, int64_t count, int64_t K
) {
  for (int64_t k = 0; k < K; ++k) {
    kernels.load(element, panel + k * width, at(source, element, k * k_stride), 1, count);
    std::memset(panel + k * width + count, 0, static_cast<size_t>(width - count) * sizeof(float));
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
  if (row_stride == 1 && k_stride != 1) {
    pack_columns(element, panel, width, source, k_stride, count, K);
  } else {
    pack_rows(element, panel, width, source, row_stride, k_stride, count, K);
  }
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
