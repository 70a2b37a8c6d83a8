// sigmoid_gate, swiglu and geglu: out = f(gate) x, f the sigmoid, silu or gelu.
//
//   each thread: four columns of one row
//
// In float32, with one rounding. The sigmoid is taken by exp(-|z|), which cannot overflow. A gate and an input that are
// the two halves of one matrix product are read where they lie.
//
// Provenance: Shazeer, arXiv 2002.05202 (swiglu, geglu).

#include <metal_stdlib>

#include "kernels/args/gates.h"
#include "kernels/common/activation.h"
#include "kernels/common/instantiate.h"
#include "kernels/common/rows.h"

using namespace metal;

constant int gate_function [[function_constant(0)]]; // a GateFunction
constant bool gate_vector_gate [[function_constant(1)]];
constant bool gate_vector_x [[function_constant(2)]];
constant bool gate_vector_out [[function_constant(3)]];

inline float gate_of(float z) {
  switch (gate_function) {
    case GATE_SIGMOID:
      return sigmoid(z);
    case GATE_SILU:
      return silu(z);
    case GATE_GELU:
      return gelu(z);
    default:
      return gelu_tanh(z);
  }
}

template <typename T>
[[kernel]] void gate_rows(
    device const T* gate [[buffer(0)]],
    device const T* x [[buffer(1)]],
    device T* out [[buffer(2)]],
    constant GateArgs& args [[buffer(3)]],
    uint3 position [[thread_position_in_grid]]
) {
  const int columns = args.rows.columns;
  const int64_t row = position.y;
  const int64_t first = int64_t(position.x) * 4;
  if (first >= columns || row >= args.rows.count) {
    return;
  }
  const int column = int(first);
  device const T* gate_row = gate + row_offset(row, args.rows, args.gate);
  device const T* x_row = x + row_offset(row, args.rows, args.x);
  const float4 z = row_load(gate_row, args.gate.column_stride, gate_vector_gate, column, columns);
  const float4 v = row_load(x_row, args.x.column_stride, gate_vector_x, column, columns);
  const float4 y = float4(gate_of(z[0]), gate_of(z[1]), gate_of(z[2]), gate_of(z[3])) * v;
  row_store(out + row * columns, y, gate_vector_out, column, columns);
}

// clang-format off
instantiate_kernel("gate_rows_float32", gate_rows, float)
instantiate_kernel("gate_rows_float16", gate_rows, half)
instantiate_kernel("gate_rows_bfloat16", gate_rows, bfloat)
