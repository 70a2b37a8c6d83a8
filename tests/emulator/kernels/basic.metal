#include <metal_stdlib>
using namespace metal;

constant bool negate [[function_constant(0)]];
constant int shift [[function_constant(1)]];
constant bool plain = !negate && shift == 0;

struct Scale {
  float factor;
  int n;
};

// out[i] = +-(a[i] * factor + bias[i]) + shift, bias only where it is bound.
kernel void scale_add(
    device const float* a [[buffer(0)]],
    device const float* bias [[buffer(1), function_constant(negate)]],
    device float* out [[buffer(2)]],
    constant Scale& scale [[buffer(3)]],
    uint i [[thread_position_in_grid]]
) {
  if (int(i) >= scale.n) {
    return;
  }
  float x = a[i] * scale.factor;
  if (negate) {
    x = -(x + bias[i]);
  }
  out[i] = plain ? x : x + shift;
}

// Sum of each row of n: threads, then simdgroups, then the first simdgroup.
[[kernel, max_total_threads_per_threadgroup(512)]] void row_sum(
    device const float* a [[buffer(0)]],
    device float* out [[buffer(1)]],
    constant uint& n [[buffer(2)]],
    uint row [[threadgroup_position_in_grid]],
    uint thread_index [[thread_position_in_threadgroup]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]
) {
  threadgroup float partial[32];
  float sum = 0;
  for (uint i = thread_index; i < n; i += threads) {
    sum += a[row * n + i];
  }
  sum = simd_sum(sum);
  if (lane == 0) {
    partial[simdgroup] = sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (simdgroup == 0) {
    const float total = simd_sum(lane < simdgroups ? partial[lane] : 0.0);
    if (lane == 0) {
      out[row] = total;
    }
  }
}
