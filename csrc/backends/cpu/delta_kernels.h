#pragma once

#include <cstdint>

namespace tessl::cpu {

// One token of the gated delta rule for one head: see gated_delta.h. Contiguous float32; `out` may be `state`.
struct DeltaStep {
  const float* state = nullptr; // [Dv, Dk]
  const float* q = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  float decay = 1.0f;
  float beta = 0.0f;
  float* out = nullptr; // [Dv, Dk]
  float* y = nullptr;   // [Dv]
};

// What the gated delta rule and its convolution need of the instruction set. Contiguous float32.
struct DeltaKernels {
  void (*step)(const DeltaStep& step, int64_t Dk, int64_t Dv);

  // decays[i, j] = the product of decay[j + 1 .. i] for j <= i, and 0 elsewhere: [n, n] with rows `ld` apart.
  void (*decays)(float* decays, int64_t ld, const float* decay, int64_t n);

  // out[i] = factor a[i] b[i].
  void (*multiply)(float* out, float factor, const float* a, const float* b, int64_t count);

  // out[i] = factor (a[i] - b_factor b[i]).
  void (*subtract)(float* out, float factor, const float* a, float b_factor, const float* b, int64_t count);

  // X = (I + A)^-1 X for the strictly lower part of A [n, n]; X [n, columns].
  void (*solve)(const float* A, int64_t lda, float* X, int64_t n, int64_t columns);

  // X = (I + A)^-T X.
  void (*solve_transposed)(const float* A, int64_t lda, float* X, int64_t n, int64_t columns);

  float (*dot)(const float* a, const float* b, int64_t count);

  // sums[i] += factor x[i].
  void (*accumulate)(float* sums, float factor, const float* x, int64_t count);

  // out[c] = sum_j weights[j, c] rows[j][c], then silu of it; weights [taps, count].
  void (*convolve)(
      float* out, const float* const* rows, const float* weights, int64_t taps, int64_t count, bool with_silu
  );
};

// The kernels for this CPU: those of vector_kernels()'s instruction set.
const DeltaKernels& delta_kernels();

} // namespace tessl::cpu
