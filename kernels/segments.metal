// segment_mean: out[s] = the mean of the rows of x from starts[s] on, lengths[s] of them; zeros for none.
//
//   for each segment and 128 columns, a threadgroup of 8 simdgroups, four columns a lane:
//     simdgroup i sums rows i, i + 8, ... of the segment
//     the first adds the eight sums in order, and divides
//
// In float32, with one rounding. Rows before 0 or past the end do not count, and rows of no segment are not read.

#include <metal_stdlib>

#include "kernels/args/segments.h"
#include "kernels/common/instantiate.h"
#include "kernels/common/rows.h"

using namespace metal;

constant bool segment_vector_x [[function_constant(0)]];
constant bool segment_vector_out [[function_constant(1)]];

constant constexpr int segment_simdgroups = 8;

template <typename T>
[[kernel, max_total_threads_per_threadgroup(256)]] void segment_mean(
    device const T* x [[buffer(0)]],
    device const int* starts [[buffer(1)]],
    device const int* lengths [[buffer(2)]],
    device T* out [[buffer(3)]],
    constant SegmentArgs& args [[buffer(4)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]
) {
  threadgroup float4 sums[segment_simdgroups][32];
  const int64_t start = starts[int64_t(group.y) * args.start_stride];
  const int64_t length = lengths[int64_t(group.y) * args.length_stride];
  const int64_t first = clamp(start, int64_t(0), args.rows);
  const int64_t last = clamp(start + length, first, args.rows);
  const int column = int(group.x) * 128 + int(lane) * 4;

  float4 sum(0.0f);
  if (column < args.columns) {
    for (int64_t row = first + simdgroup; row < last; row += segment_simdgroups) {
      sum += row_load(x + row * args.row_stride, args.column_stride, segment_vector_x, column, args.columns);
    }
  }
  sums[simdgroup][lane] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (simdgroup == 0 && column < args.columns) {
    for (int i = 1; i < segment_simdgroups; ++i) {
      sum += sums[i][lane];
    }
    const float4 mean = sum / float(max(last - first, int64_t(1)));
    row_store(out + int64_t(group.y) * args.columns, mean, segment_vector_out, column, args.columns);
  }
}

// clang-format off
instantiate_kernel("segment_mean_float32", segment_mean, float)
instantiate_kernel("segment_mean_float16", segment_mean, half)
instantiate_kernel("segment_mean_bfloat16", segment_mean, bfloat)
