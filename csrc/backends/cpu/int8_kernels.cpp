// Compiled once for each instruction set: see vectors.h.

#include "backends/cpu/int8_kernels.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "backends/cpu/transpose.h"
#include "backends/cpu/vectors.h"

namespace tessl::cpu::TESSL_CPU_ISA {
namespace {

#if defined(__AVX512VNNI__)
typedef int8_t Member __attribute__((may_alias));
constexpr bool a_is_unsigned = true;
#else
typedef int16_t Member __attribute__((may_alias));
constexpr bool a_is_unsigned = false;
#endif

constexpr int64_t group = sizeof(Int8Group) / sizeof(Member);
constexpr int member_bits = 8 * sizeof(Member);

// How far ahead columns of b are fetched, into L2.
constexpr int64_t bytes_ahead = 512;

// Of a register block: 12 sums, 2 vectors of b and 1 of a in 16 registers, or 24, 4 and 1 in 32.
constexpr int max_rows = 6;
constexpr int strip_vectors = lanes == 16 ? 4 : 2;
constexpr int64_t strip_columns = strip_vectors * lanes;

// sums + sum_i a.i b.i in each lane.
TESSL_INLINE Ints add_products(Ints sums, Ints a, Ints b) {
#if defined(__AVX512VNNI__)
  return (Ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)a, (__m512i)b);
#elif defined(__AVX512BW__)
  return sums + (Ints)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return sums + (Ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
  return sums + (Ints)_mm_madd_epi16((__m128i)a, (__m128i)b);
#elif defined(__ARM_NEON)
  const int16x8_t x = vreinterpretq_s16_s32((int32x4_t)a);
  const int16x8_t y = vreinterpretq_s16_s32((int32x4_t)b);
  return sums + (Ints)vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y));
#else
  const Ints first = ((a << 16) >> 16) * ((b << 16) >> 16);
  return sums + first + (a >> 16) * (b >> 16);
#endif
}

// What starts a sum may take it past int32 before the products bring it back.
TESSL_INLINE Ints add_wrapping(Ints a, Ints b) {
  return (Ints)((Words)a + (Words)b);
}

template <int Rows>
TESSL_INLINE void multiply_strip(
    int32_t* sums,
    int64_t ld_sums,
    const Int8Group* a,
    int64_t lda,
    const Int8Group* strip,
    int64_t groups,
    bool accumulate
) {
  Ints block[Rows][strip_vectors];
#pragma GCC unroll 6
  for (int m = 0; m < Rows; ++m) {
#pragma GCC unroll 4
    for (int n = 0; n < strip_vectors; ++n) {
      const Ints start = read<Ints>(strip + n * lanes);
      block[m][n] = accumulate ? add_wrapping(read<Ints>(sums + m * ld_sums + n * lanes), start) : start;
    }
  }
  for (int64_t g = 0; g < groups; ++g) {
    Ints b[strip_vectors];
#pragma GCC unroll 4
    for (int n = 0; n < strip_vectors; ++n) {
      b[n] = read<Ints>(strip + (1 + g) * strip_columns + n * lanes);
    }
#pragma GCC unroll 6
    for (int m = 0; m < Rows; ++m) {
      const Ints x = Ints{} + a[m * lda + g];
#pragma GCC unroll 4
      for (int n = 0; n < strip_vectors; ++n) {
        block[m][n] = add_products(block[m][n], x, b[n]);
      }
    }
  }
#pragma GCC unroll 6
  for (int m = 0; m < Rows; ++m) {
#pragma GCC unroll 4
    for (int n = 0; n < strip_vectors; ++n) {
      write(sums + m * ld_sums + n * lanes, block[m][n]);
    }
  }
}

template <int Rows = max_rows>
TESSL_INLINE void multiply_rows(
    int64_t rows,
    int32_t* sums,
    int64_t ld_sums,
    const Int8Group* a,
    int64_t lda,
    const Int8Group* strip,
    int64_t groups,
    bool accumulate
) {
  if (rows == Rows) {
    multiply_strip<Rows>(sums, ld_sums, a, lda, strip, groups, accumulate);
  } else if constexpr (Rows > 1) {
    multiply_rows<Rows - 1>(rows, sums, ld_sums, a, lda, strip, groups, accumulate);
  }
}

// Register blocks of like height: the last one is not left a stump.
void multiply(
    int32_t* sums,
    int64_t ld_sums,
    const Int8Group* a,
    int64_t lda,
    const Int8Group* strips,
    int64_t M,
    int64_t columns,
    int64_t groups,
    bool accumulate
) {
  const int64_t blocks = (M + max_rows - 1) / max_rows;
  for (int64_t n = 0; n < columns; n += strip_columns) {
    const Int8Group* strip = strips + n * (1 + groups);
    for (int64_t i = 0; i < blocks; ++i) {
      const int64_t m = i * M / blocks;
      const int64_t rows = (i + 1) * M / blocks - m;
      multiply_rows(rows, sums + m * ld_sums + n, ld_sums, a + m * lda, lda, strip, groups, accumulate);
    }
  }
}

TESSL_INLINE Member member_of_a(int8_t x) {
  return static_cast<Member>(a_is_unsigned ? x ^ -128 : x);
}

void pack_rows(
    Int8Group* target,
    int64_t ld_target,
    const int8_t* source,
    int64_t line_stride,
    int64_t k_stride,
    int64_t lines,
    int64_t depth
) {
  const int64_t padded = (depth + group - 1) / group * group;
  for (int64_t i = 0; i < lines; ++i) {
    const int8_t* line = source + i * line_stride;
    auto* members = reinterpret_cast<Member*>(target + i * ld_target);
    if (k_stride == 1) {
      for (int64_t k = 0; k < depth; ++k) {
        members[k] = member_of_a(line[k]);
      }
    } else {
      for (int64_t k = 0; k < depth; ++k) {
        members[k] = member_of_a(line[k * k_stride]);
      }
    }
    for (int64_t k = depth; k < padded; ++k) {
      members[k] = 0;
    }
  }
}

TESSL_INLINE Int8Group group_of_b(const int8_t* source, int64_t k_stride, int64_t count) {
  constexpr uint32_t mask = ~uint32_t{0} >> (32 - member_bits);
  uint32_t bits = 0;
  for (int64_t i = 0; i < count; ++i) {
    bits |= (static_cast<uint32_t>(int32_t{source[i * k_stride]}) & mask) << (i * member_bits);
  }
  return static_cast<Int8Group>(bits);
}

// As many groups as there are lanes, of as many columns whose bytes follow each other in k.
TESSL_INLINE void pack_square(Int8Group* target, const int8_t* source, int64_t column_stride) {
  Floats square[lanes];
  for (int i = 0; i < lanes; ++i) {
    square[i] = read<Floats>(source + i * column_stride);
    __builtin_prefetch(source + i * column_stride + bytes_ahead, 0, 2);
  }
  transpose(square);
  for (int i = 0; i < lanes; ++i) {
    write(target + i * strip_columns, square[i]);
  }
}

TESSL_INLINE void pack_strip(
    Int8Group* target, const int8_t* source, int64_t k_stride, int64_t column_stride, int64_t columns, int64_t depth
) {
  int64_t k = 0;
  if (sizeof(Member) == 1 && k_stride == 1 && columns == strip_columns) {
    for (; k + lanes * group <= depth; k += lanes * group) {
      for (int64_t n = 0; n < strip_columns; n += lanes) {
        pack_square(target + k / group * strip_columns + n, source + k + n * column_stride, column_stride);
      }
    }
  }
  for (; k < depth; k += group) {
    Int8Group* row = target + k / group * strip_columns;
    const int8_t* first = source + k * k_stride;
    if (columns == strip_columns && k + group <= depth && column_stride == 1) {
      for (int64_t i = 0; i < strip_columns; ++i) {
        row[i] = group_of_b(first + i, k_stride, group);
      }
      continue;
    }
    const int64_t count = depth - k < group ? depth - k : group;
    for (int64_t i = 0; i < strip_columns; ++i) {
      row[i] = i < columns ? group_of_b(first + i * column_stride, k_stride, count) : 0;
    }
  }
}

// a b = (a + 128) b - 128 b.
TESSL_INLINE Ints start_of_sums(const Int8Group* column, int64_t groups) {
  Ints excess{};
  if constexpr (a_is_unsigned) {
    const Ints each = Ints{} + static_cast<int32_t>(0x80808080u);
    for (int64_t g = 0; g < groups; ++g) {
      excess = add_products(excess, each, read<Ints>(column + g * strip_columns));
    }
  }
  return -excess;
}

void pack_strips(
    Int8Group* target, const int8_t* source, int64_t k_stride, int64_t column_stride, int64_t columns, int64_t depth
) {
  const int64_t groups = (depth + group - 1) / group;
  for (int64_t n = 0; n < columns; n += strip_columns) {
    const int64_t count = columns - n < strip_columns ? columns - n : strip_columns;
    Int8Group* start = target + n * (1 + groups);
    Int8Group* strip = start + strip_columns;
    pack_strip(strip, source + n * column_stride, k_stride, column_stride, count, depth);
    for (int64_t i = 0; i < strip_columns; i += lanes) {
      write(start + i, start_of_sums(strip + i, groups));
    }
  }
}

TESSL_INLINE int32_t sum_of(const int8_t* a, int64_t depth) {
  int32_t sum = 0;
  for (int64_t k = 0; k < depth; ++k) {
    sum += a[k];
  }
  return sum;
}

// The compiler makes dot products of these: with unsigned bytes where the CPU has such, 128 a too much.
TESSL_INLINE int32_t dot(const int8_t* a, const int8_t* b, int64_t depth) {
  int32_t sum = 0;
  for (int64_t k = 0; k < depth; ++k) {
    if constexpr (a_is_unsigned) {
      sum += static_cast<uint8_t>(b[k] ^ -128) * a[k];
    } else {
      sum += b[k] * a[k];
    }
  }
  return sum;
}

void multiply_in_place(
    int32_t* sums,
    int64_t ld_sums,
    const int8_t* a,
    int64_t row_stride,
    const int8_t* b,
    int64_t column_stride,
    int64_t M,
    int64_t columns,
    int64_t depth,
    bool accumulate
) {
  for (int64_t m = 0; m < M; ++m) {
    const int8_t* row = a + m * row_stride;
    int32_t* row_sums = sums + m * ld_sums;
    const int32_t excess = a_is_unsigned ? 128 * sum_of(row, depth) : 0;
    for (int64_t n = 0; n < columns; ++n) {
      const int32_t sum = dot(row, b + n * column_stride, depth) - excess;
      row_sums[n] = accumulate ? row_sums[n] + sum : sum;
    }
  }
}

} // namespace

extern const Int8Kernels int8;
const Int8Kernels int8{strip_columns, group, pack_rows, pack_strips, multiply, multiply_in_place};

} // namespace tessl::cpu::TESSL_CPU_ISA
