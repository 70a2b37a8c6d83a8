#include "ops/segment_mean.h"

#include <string_view>

#include <mlx/ops.h>

#include "backends/cpu/segments.h"
#include "ops/checks.h"
#include "ops/row_op.h"
#include "ops/segment_mean_plan.h"

namespace tessl {
namespace {

// Means as a product with a matrix of 1 / length: a row of no segment is hidden from it, for it may hold NaN.
mx::array compose(const mx::array& x, const mx::array& starts, const mx::array& lengths, mx::Stream s) {
  const auto rows = mx::arange(x.shape(0), mx::int32, s);
  const auto start = mx::expand_dims(mx::astype(starts, mx::int64, s), 1, s);
  const auto end = mx::add(start, mx::expand_dims(lengths, 1, s), s);
  const auto inside = mx::logical_and(mx::greater_equal(rows, start, s), mx::less(rows, end, s), s);
  const auto members = mx::astype(inside, mx::float32, s);
  const auto count = mx::maximum(mx::sum(members, 1, /* keepdims = */ true, s), mx::array(1.0f), s);
  const auto seen = mx::expand_dims(mx::any(inside, 0, /* keepdims = */ false, s), 1, s);
  const auto visible = mx::where(seen, mx::astype(x, mx::float32, s), mx::array(0.0f), s);
  return mx::astype(mx::matmul(mx::divide(members, count, s), visible, s), x.dtype(), s);
}

// Inputs: x, starts, lengths.
class SegmentMean : public RowOp {
 public:
  using RowOp::RowOp;

  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override {
    return {{inputs[1].shape(0), inputs[0].shape(1)}};
  }

  const char* name() const override {
    return "mlx_tessl.segment_mean";
  }

 protected:
  Plan plan(const Arrays& inputs, const Arrays&, const DeviceProfile&) const override {
    return plan_segment_mean(inputs[0].dtype(), Operand::of(inputs[0]), Operand::of(inputs[1]), Operand::of(inputs[2]));
  }

  std::function<void()> compute(const Arrays& inputs, Arrays& outputs) const override {
    const auto& x = inputs[0];
    const auto operand = Operand::of(x);
    const cpu::SegmentMean work{
        .x = cpu_rows(x, rows_of(x.shape(), {&operand, 1}).sources[0]),
        .rows = x.shape(0),
        .columns = x.shape(1),
        .row_stride = x.strides(0),
        .starts = inputs[1].data<int32_t>(),
        .lengths = inputs[2].data<int32_t>(),
        .start_stride = inputs[1].strides(0),
        .length_stride = inputs[2].strides(0),
        .segments = inputs[1].shape(0),
        .out = outputs[0].data<char>(),
    };
    return [work] { cpu::segment_mean(work); };
  }

  bool same_parameters(const Op&) const override {
    return true;
  }

  Meaning meaning() override {
    return [s = stream()](const Arrays& inputs) { return Arrays{compose(inputs[0], inputs[1], inputs[2], s)}; };
  }

  // Rows belong together here: a mapped input maps the meaning.
  size_t row_inputs() const override {
    return 0;
  }

  Arrays apply(const Arrays& inputs) override {
    return make_outputs(std::make_shared<SegmentMean>(stream()), inputs[0].dtype(), inputs);
  }
};

// As int64: what does not fit becomes a number whose sums still do, far beyond every array.
mx::array as_int64(const mx::array& x, mx::Stream s) {
  constexpr int64_t far = int64_t{1} << 62;
  if (x.dtype() == mx::uint64) {
    return mx::astype(mx::minimum(x, mx::array(far, mx::uint64), s), mx::int64, s);
  }
  return mx::clip(mx::astype(x, mx::int64, s), mx::array(-far, mx::int64), mx::array(far, mx::int64), s);
}

// Starts and lengths as int32. A segment that does not fit is cut to its rows from 0 on: the others never exist.
std::pair<mx::array, mx::array> as_segments(const mx::array& starts, const mx::array& lengths, mx::Stream s) {
  auto fits = [](mx::Dtype dtype) { return dtype.size() < 4 || dtype == mx::int32; };
  if (fits(starts.dtype()) && fits(lengths.dtype())) {
    return {as_int32(starts, s), as_int32(lengths, s)};
  }
  const auto start = as_int64(starts, s);
  const auto first = mx::maximum(start, mx::array(0, mx::int64), s);
  const auto count = mx::subtract(mx::add(start, as_int64(lengths, s), s), first, s);
  return {as_int32(first, s), as_int32(count, s)};
}

} // namespace

mx::array segment_mean(
    const mx::array& x, const mx::array& starts, const mx::array& lengths, mx::StreamOrDevice stream
) {
  constexpr std::string_view op = "mlx_tessl.segment_mean";
  if (x.ndim() != 2 || x.shape(1) == 0) {
    refuse(op, "x has shape ", x.shape(), "; it must be (R, N), of rows that are not empty");
  }
  check_integers(op, "starts", starts);
  check_integers(op, "lengths", lengths);
  if (starts.ndim() != 1 || lengths.shape() != starts.shape()) {
    refuse(
        op, "starts has shape ", starts.shape(), " and lengths ", lengths.shape(), "; both must be of S segments, (S,)"
    );
  }
  const auto dtype = check_dtypes(op, {x});
  const auto s = mx::to_stream(stream);
  const auto segments = as_segments(starts, lengths, s);
  const Arrays inputs{x, segments.first, segments.second};
  return make_outputs(std::make_shared<SegmentMean>(s), dtype, inputs)[0];
}

} // namespace tessl
