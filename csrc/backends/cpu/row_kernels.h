#pragma once

#include <cstdint>

#include "backends/cpu/element.h"
#include "kernels/args/gates.h"

namespace tessl::cpu {

// One row of a norm, all in float32; null is an absent operand. See kernels/norms.metal.
struct NormRow {
  const float* x = nullptr;
  const float* residual = nullptr;
  const float* gate = nullptr;
  const float* weight = nullptr;
  const float* bias = nullptr;
  bool centered = false;
  float eps = 0.0f;
  float weight_offset = 0.0f;
  float* sum = nullptr; // x + residual: written when there is a residual
  float* out = nullptr;
  int64_t count = 0;
};

// What rows need of the instruction set. Arrays are contiguous float32 unless said otherwise, and outputs may be
// inputs.
struct RowKernels {
  // target[i] = source[i], rounded.
  void (*store)(Element element, void* target, const float* source, int64_t count);

  void (*norm)(const NormRow& row);

  // out[i] = f(gate[i]) x[i].
  void (*gate)(GateFunction function, float* out, const float* gate, const float* x, int64_t count);

  // Cosines and sines of position inv_freq[i], the product rounded to float32.
  void (*cos_sin)(float* cosines, float* sines, float position, const float* inv_freq, int64_t count);

  // Rotates the pair (x[i], x[i + half]), or (x[2 i], x[2 i + 1]) when they are interleaved, by angle i.
  void (*rotate)(float* out, const float* x, const float* cosines, const float* sines, int64_t half, bool interleaved);

  float (*sum)(const float* x, int64_t count);
  float (*sum_of_squares)(const float* x, int64_t count);

  // The greatest element; NaN when there is one.
  float (*max)(const float* x, int64_t count);

  // out[i] = exp(x[i] - most), 1 where they are equal, and their sum; without `out` the sum alone. `most` is no less
  // than any x[i].
  float (*exponentials)(float* out, const float* x, float most, int64_t count);

  // out[i] = factor x[i].
  void (*scale)(float* out, float factor, const float* x, int64_t count);

  // sums[i] += x[i].
  void (*add)(float* sums, const float* x, int64_t count);

  // The sum of weights[i] over x[i] >= least.
  float (*mass_from)(const float* x, const float* weights, float least, int64_t count);
  int64_t (*count_from)(const float* x, float least, int64_t count);
};

} // namespace tessl::cpu
