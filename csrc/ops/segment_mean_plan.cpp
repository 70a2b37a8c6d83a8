#include "ops/segment_mean_plan.h"

#include "kernels/args/segments.h"
#include "launch/rows.h"
#include "launch/typed_kernels.h"

namespace tessl {

Plan plan_segment_mean(mlx::core::Dtype dtype, const Operand& x, const Operand& starts, const Operand& lengths) {
  static const TypedKernels kernels("segment_mean", "segments");
  constexpr int32_t columns_a_group = 128;
  const int32_t columns = x.shape[1];
  const auto source = rows_of(x.shape, {&x, 1}).sources[0];

  Plan plan;
  plan.launches.push_back({});
  Launch& launch = plan.launches.back();
  launch.kernel = kernels.of(dtype);
  launch.constants = {
      FunctionConstant::boolean(0, source.in_runs_of_four(dtype.size())),
      FunctionConstant::boolean(1, columns % 4 == 0),
  };
  launch.arguments = {Argument::input(0), Argument::input(1), Argument::input(2), Argument::output(0)};
  launch.push_bytes(
      SegmentArgs{x.shape[0], x.strides[0], source.column_stride, starts.strides[0], lengths.strides[0], columns, 0}
  );
  launch.group = {256, 1, 1};
  launch.grid = {
      static_cast<uint32_t>((int64_t{columns} + columns_a_group - 1) / columns_a_group),
      static_cast<uint32_t>(starts.shape[0]),
      1
  };
  return plan;
}

} // namespace tessl
