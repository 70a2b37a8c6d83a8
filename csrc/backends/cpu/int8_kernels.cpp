// Compiled once for each instruction set: see vectors.h.

#include "backends/cpu/int8_kernels.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "backends/cpu/vectors.h"

namespace tessl::cpu::TESSL_CPU_ISA {
namespace {

constexpr int64_t strip_columns = 2 * lanes;
constexpr int64_t max_rows = 6; // of a register block: 12 sums, 2 of b and 1 of a in 16 registers

TESSL_INLINE Int8Pair pair_of(int8_t first, int8_t second) {
  return static_cast<Int8Pair>(
      static_cast<uint32_t>(static_cast<uint16_t>(first)) | static_cast<uint32_t>(static_cast<uint16_t>(second)) << 16
  );
}

// a.first b.first + a.second b.second in each lane, at most 2^15.
TESSL_INLINE Ints multiply_pairs(Ints a, Ints b) {
#if defined(__AVX512BW__)
  return (Ints)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (Ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
  return (Ints)_mm_madd_epi16((__m128i)a, (__m128i)b);
#elif defined(__ARM_NEON)
  const int16x8_t x = vreinterpretq_s16_s32((int32x4_t)a);
  const int16x8_t y = vreinterpretq_s16_s32((int32x4_t)b);
  return (Ints)vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y));
#else
  const Ints first = ((a << 16) >> 16) * ((b << 16) >> 16);
  return first + (a >> 16) * (b >> 16);
#endif
}

template <int Rows>
TESSL_INLINE void multiply_strip(
    int32_t* sums, int64_t ld_sums, const Int8Pair* a, int64_t lda, const Int8Pair* strip, int64_t pairs
) {
  Ints low[Rows], high[Rows];
  for (int m = 0; m < Rows; ++m) {
    low[m] = read<Ints>(sums + m * ld_sums);
    high[m] = read<Ints>(sums + m * ld_sums + lanes);
  }
  for (int64_t p = 0; p < pairs; ++p) {
    const Ints b_low = read<Ints>(strip + p * strip_columns);
    const Ints b_high = read<Ints>(strip + p * strip_columns + lanes);
    for (int m = 0; m < Rows; ++m) {
      const Ints x = Ints{} + a[m * lda + p];
      low[m] += multiply_pairs(x, b_low);
      high[m] += multiply_pairs(x, b_high);
    }
  }
  for (int m = 0; m < Rows; ++m) {
    write(sums + m * ld_sums, low[m]);
    write(sums + m * ld_sums + lanes, high[m]);
  }
}

void multiply(
    int32_t* sums,
    int64_t ld_sums,
    const Int8Pair* a,
    int64_t lda,
    const Int8Pair* strips,
    int64_t M,
    int64_t columns,
    int64_t pairs
) {
  for (int64_t n = 0; n < columns; n += strip_columns) {
    const Int8Pair* strip = strips + n * pairs;
    int64_t m = 0;
    for (; m + max_rows <= M; m += max_rows) {
      multiply_strip<max_rows>(sums + m * ld_sums + n, ld_sums, a + m * lda, lda, strip, pairs);
    }
    for (; m + 2 <= M; m += 2) {
      multiply_strip<2>(sums + m * ld_sums + n, ld_sums, a + m * lda, lda, strip, pairs);
    }
    for (; m < M; ++m) {
      multiply_strip<1>(sums + m * ld_sums + n, ld_sums, a + m * lda, lda, strip, pairs);
    }
  }
}

void pack_rows(
    Int8Pair* target,
    int64_t ld_target,
    const int8_t* source,
    int64_t line_stride,
    int64_t k_stride,
    int64_t lines,
    int64_t depth
) {
  for (int64_t i = 0; i < lines; ++i) {
    const int8_t* line = source + i * line_stride;
    Int8Pair* pairs = target + i * ld_target;
    if (k_stride == 1) {
      for (int64_t p = 0; p < depth / 2; ++p) {
        pairs[p] = pair_of(line[2 * p], line[2 * p + 1]);
      }
    } else {
      for (int64_t p = 0; p < depth / 2; ++p) {
        pairs[p] = pair_of(line[2 * p * k_stride], line[(2 * p + 1) * k_stride]);
      }
    }
    if (depth % 2 != 0) {
      pairs[depth / 2] = pair_of(line[(depth - 1) * k_stride], 0);
    }
  }
}

void pack_strips(
    Int8Pair* target, const int8_t* source, int64_t k_stride, int64_t column_stride, int64_t columns, int64_t depth
) {
  const int64_t pairs = (depth + 1) / 2;
  for (int64_t n = 0; n < columns; n += strip_columns) {
    const int64_t count = columns - n < strip_columns ? columns - n : strip_columns;
    for (int64_t p = 0; p < pairs; ++p) {
      Int8Pair* row = target + (n * pairs + p * strip_columns);
      const int8_t* first = source + (2 * p * k_stride + n * column_stride);
      const int8_t* second = 2 * p + 1 < depth ? first + k_stride : nullptr;
      if (count == strip_columns && second != nullptr && column_stride == 1) {
        for (int64_t i = 0; i < strip_columns; ++i) {
          row[i] = pair_of(first[i], second[i]);
        }
        continue;
      }
      for (int64_t i = 0; i < strip_columns; ++i) {
        const bool inside = i < count;
        const int8_t low = inside ? first[i * column_stride] : int8_t{0};
        const int8_t high = inside && second != nullptr ? second[i * column_stride] : int8_t{0};
        row[i] = pair_of(low, high);
      }
    }
  }
}

} // namespace

extern const Int8Kernels int8;
const Int8Kernels int8{strip_columns, pack_rows, pack_strips, multiply};

} // namespace tessl::cpu::TESSL_CPU_ISA
