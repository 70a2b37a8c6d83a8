#include "backends/cpu/matmul_epilogue.h"

#include "backends/cpu/elements.h"
#include "backends/cpu/vector_kernels.h"

namespace tessl::cpu {
namespace {

bool has_epilogue(const Matmul& p) {
  return p.alpha != 1.0f || p.c || p.bias || p.residual || p.activation != MATMUL_ACTIVATION_NONE;
}

RowView row_view(const MatrixView& view, Element element, int64_t m, int64_t n) {
  if (!view) {
    return {};
  }
  return {advance(view.data, element, m * view.strides[0] + n * view.strides[1]), view.strides[1]};
}

} // namespace

void finish(const Matmul& p, Range rows, Range columns, Sums sums) {
  const Element element = element_of(p.dtype);
  if (element == Element::float32 && !has_epilogue(p)) {
    return;
  }
  for (int64_t i = 0; i < rows.size(); ++i) {
    const int64_t m = rows.begin + i;
    const EpilogueRow row{
        .alpha = p.alpha,
        .beta = p.beta,
        .activation = p.activation,
        .c = row_view(p.c, element, m, columns.begin),
        .bias = row_view(p.bias, element, m, columns.begin),
        .residual = row_view(p.residual, element, m, columns.begin),
    };
    void* out = advance(p.out, element, m * p.N + columns.begin);
    vector_kernels().finish(element, out, sums.row(i), row, columns.size());
  }
}

} // namespace tessl::cpu
