#pragma once

struct Problem {
  int M, N, K;
  int lda, ldb, ldc;
};
