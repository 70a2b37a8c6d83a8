#pragma once

#include <cstdint>

#include "backends/cpu/element.h"

namespace tessl::cpu {

// Rows of contiguous elements, to be copied as float32, times `factor`, into rows that zeros fill up. Strides are in
// elements.
struct RowsCopy {
  float* target = nullptr;
  int64_t target_stride = 0;
  int64_t width = 0; // of the target: at least `columns`
  Element element = Element::float32;
  const void* source = nullptr;
  int64_t source_stride = 0;
  int64_t count = 0;
  int64_t columns = 0;
  float factor = 1.0f;
};

// c[r, n] = sum_k a[r, k] b[k, n], or += it: r < AttentionKernels::rows, and n < columns in each of `panels` panels.
// Strides are in floats. The sums of an element are made in the order of k, whatever else is computed beside it.
struct PanelProduct {
  float* c = nullptr;
  int64_t c_stride = 0; // of rows; panels follow one another
  const float* a = nullptr;
  int64_t a_row_stride = 0;
  int64_t a_depth_stride = 0;
  const float* b = nullptr;
  int64_t b_depth_stride = 0;
  int64_t b_panel_stride = 0;
  int64_t panels = 0;
  int64_t depth = 0;
  bool accumulate = false;
};

// A query's scores of one tile of keys, in units of log 2, and what becomes of them. Columns from `first` to `last` are
// computed, of which those from `begin` to `end` are seen.
struct ScoreRow {
  float* scores = nullptr;
  int64_t first = 0;
  int64_t last = 0;
  int64_t begin = 0;
  int64_t end = 0;
  float scale = 1.0f;          // of the scores, before all else
  float cap = 0.0f;            // scores become cap tanh(scores); 0 is none
  const float* bias = nullptr; // added then; -infinity hides
};

// What the native code of attention needs of the instruction set; all is float32.
struct AttentionKernels {
  // The block of sums that a product keeps in registers. Both divide 96.
  int64_t rows;
  int64_t columns;

  void (*multiply)(const PanelProduct& product);

  // As an accumulating product, term by term, of which those that a weighs with 0 are left out, even if b is NaN there.
  void (*multiply_nonzero)(const PanelProduct& product);

  // panel[d * columns + r] = source[r * stride + d] for r < count; 0 from there on.
  void (*pack_transposed)(float* panel, const float* source, int64_t stride, int64_t count, int64_t depth);

  // False when an element is an infinity or NaN.
  bool (*copy_rows)(const RowsCopy& copy);
  bool (*all_finite)(const float* x, int64_t count);

  // One step of the online softmax: scores become weights 2^(score - most), 0 where they are not seen, after `most` has
  // grown to the greatest of them, and their sum is added to `sum`. Returns what all that was summed before is to be
  // multiplied by, 2^(most before - most).
  float (*soften)(ScoreRow row, float& most, float& sum);

  // Scores become weights 2^(score - most) inverse, and `slopes`, the derivatives by the weights, those by the
  // products, times `factor`: weight (slope - mean), through the cap unless `by_bias`.
  void (*soften_gradient)(
      ScoreRow row, float most, float inverse, float mean, float factor, bool by_bias, float* slopes
  );
};

const AttentionKernels& attention_kernels();

} // namespace tessl::cpu
