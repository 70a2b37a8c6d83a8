#pragma once

#include "backends/cpu/vectors.h"

namespace tessl::cpu::TESSL_CPU_ISA {

// x[i][j] becomes x[j][i]: interleaving the first half of the rows with the second, as often as halves halve.
#if defined(__AVX__) && !defined(__AVX512F__)
TESSL_INLINE void transpose(Floats (&x)[lanes]) {
  // Interleaving stays within halves of 128 bits here, so that whole halves are exchanged at the end.
  Floats y[lanes];
  for (int i = 0; i < 4; ++i) {
    y[2 * i] = __builtin_shufflevector(x[2 * i], x[2 * i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    y[2 * i + 1] = __builtin_shufflevector(x[2 * i], x[2 * i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  for (int i = 0; i < 8; i += 4) {
    x[i] = __builtin_shufflevector(y[i], y[i + 2], 0, 1, 8, 9, 4, 5, 12, 13);
    x[i + 1] = __builtin_shufflevector(y[i], y[i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    x[i + 2] = __builtin_shufflevector(y[i + 1], y[i + 3], 0, 1, 8, 9, 4, 5, 12, 13);
    x[i + 3] = __builtin_shufflevector(y[i + 1], y[i + 3], 2, 3, 10, 11, 6, 7, 14, 15);
  }
  for (int i = 0; i < 4; ++i) {
    y[i] = __builtin_shufflevector(x[i], x[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    y[i + 4] = __builtin_shufflevector(x[i], x[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
  std::memcpy(x, y, sizeof(x));
}
#else
TESSL_INLINE void transpose(Floats (&x)[lanes]) {
  for (int step = 1; step < lanes; step *= 2) {
    Floats y[lanes];
    for (int i = 0; i < lanes / 2; ++i) {
      const Floats first = x[i];
      const Floats second = x[i + lanes / 2];
#if defined(__AVX512F__)
      y[2 * i] = __builtin_shufflevector(first, second, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      y[2 * i + 1] =
          __builtin_shufflevector(first, second, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#else
      y[2 * i] = __builtin_shufflevector(first, second, 0, 4, 1, 5);
      y[2 * i + 1] = __builtin_shufflevector(first, second, 2, 6, 3, 7);
#endif
    }
    std::memcpy(x, y, sizeof(x));
  }
}
#endif

} // namespace tessl::cpu::TESSL_CPU_ISA
