#include "ops/reductions.h"

#include <cmath>
#include <limits>
#include <stdexcept>
#include <string_view>

#include <mlx/ops.h>

#include "backends/cpu/reductions.h"
#include "ops/checks.h"
#include "ops/reductions_plan.h"
#include "ops/row_op.h"

namespace tessl {
namespace {

// Rows of minus infinity alone become zeros: uniform, where x - max x would be NaN.
mx::array softmax_of_rows(const mx::array& x, mx::Stream s) {
  const auto most = mx::max(x, -1, /* keepdims = */ true, s);
  const auto hidden = mx::equal(most, mx::array(-std::numeric_limits<float>::infinity()), s);
  return mx::softmax(mx::where(hidden, mx::array(0.0f), x, s), -1, /* precise = */ true, s);
}

// The norm of a zero row has no derivative: 1 stands in for it.
mx::array l2_normalized_rows(const mx::array& x, float eps, mx::Stream s) {
  const auto squares = mx::sum(mx::square(x, s), -1, /* keepdims = */ true, s);
  const auto zero = mx::equal(squares, mx::array(0.0f), s);
  const auto norm = mx::sqrt(mx::where(zero, mx::array(1.0f), squares, s), s);
  return mx::divide(x, mx::where(zero, mx::array(eps), mx::maximum(norm, mx::array(eps), s), s), s);
}

mx::array compose(Reduction reduction, const mx::array& x, float eps, mx::Stream s) {
  switch (reduction) {
    case REDUCTION_SUM:
      return mx::sum(x, -1, /* keepdims = */ false, s);
    case REDUCTION_MAX:
      return mx::max(x, -1, /* keepdims = */ false, s);
    case REDUCTION_LOGSUMEXP:
      return mx::logsumexp(x, -1, /* keepdims = */ false, s);
    case REDUCTION_SOFTMAX:
      return softmax_of_rows(x, s);
    case REDUCTION_L2_NORMALIZE:
      return l2_normalized_rows(x, eps, s);
  }
  throw std::runtime_error("unknown reduction");
}

class RowReduction : public RowOp {
 public:
  RowReduction(mx::Stream stream, Reduction reduction, float eps) : RowOp(stream), reduction_(reduction), eps_(eps) {
  }

  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override {
    auto shape = inputs[0].shape();
    if (reduction_ < REDUCTION_SOFTMAX) {
      shape.pop_back();
    }
    return {shape};
  }

  const char* name() const override {
    return "mlx_tessl.reduction";
  }

 protected:
  Plan plan(const Arrays& inputs, const Arrays&, const DeviceProfile&) const override {
    return plan_reduction(problem(inputs));
  }

  std::function<void()> compute(const Arrays& inputs, Arrays& outputs) const override {
    const auto reduction = problem(inputs);
    const cpu::RowReduction work{
        reduction_, eps_, reduction.rows, cpu_rows(inputs[0], reduction.x), outputs[0].data<char>()
    };
    return [work] { cpu::reduce_rows(work); };
  }

  bool same_parameters(const Op& other) const override {
    const auto& op = static_cast<const RowReduction&>(other);
    return reduction_ == op.reduction_ && eps_ == op.eps_;
  }

  Meaning meaning() override {
    return [reduction = reduction_, eps = eps_, s = stream()](const Arrays& inputs) {
      const auto y = compose(reduction, mx::astype(inputs[0], mx::float32, s), eps, s);
      return Arrays{mx::astype(y, inputs[0].dtype(), s)};
    };
  }

  size_t row_inputs() const override {
    return 1;
  }

  Arrays apply(const Arrays& inputs) override {
    return make_outputs(std::make_shared<RowReduction>(stream(), reduction_, eps_), inputs[0].dtype(), inputs);
  }

 private:
  ReductionProblem problem(const Arrays& inputs) const {
    return make_reduction_problem(inputs[0].dtype(), reduction_, eps_, Operand::of(inputs[0]));
  }

  Reduction reduction_;
  float eps_;
};

mx::array reduce(std::string_view op, Reduction reduction, const mx::array& x, float eps, mx::StreamOrDevice stream) {
  check_rows(op, "x", x);
  const auto dtype = check_dtypes(op, {x});
  return make_outputs(std::make_shared<RowReduction>(mx::to_stream(stream), reduction, eps), dtype, {x})[0];
}

} // namespace

mx::array row_sum(const mx::array& x, mx::StreamOrDevice stream) {
  return reduce("mlx_tessl.row_sum", REDUCTION_SUM, x, 0.0f, stream);
}

mx::array row_max(const mx::array& x, mx::StreamOrDevice stream) {
  return reduce("mlx_tessl.row_max", REDUCTION_MAX, x, 0.0f, stream);
}

mx::array logsumexp(const mx::array& x, mx::StreamOrDevice stream) {
  return reduce("mlx_tessl.logsumexp", REDUCTION_LOGSUMEXP, x, 0.0f, stream);
}

mx::array softmax(const mx::array& x, int axis, mx::StreamOrDevice stream) {
  constexpr std::string_view op = "mlx_tessl.softmax";
  const int ndim = static_cast<int>(x.ndim());
  if (axis < -ndim || axis >= ndim) {
    refuse(op, "axis is ", axis, "; x has ", ndim, " dimensions");
  }
  if (axis == -1 || axis == ndim - 1) {
    return reduce(op, REDUCTION_SOFTMAX, x, 0.0f, stream);
  }
  const auto s = mx::to_stream(stream);
  return mx::swapaxes(reduce(op, REDUCTION_SOFTMAX, mx::swapaxes(x, axis, -1, s), 0.0f, s), axis, -1, s);
}

mx::array l2_normalize(const mx::array& x, float eps, mx::StreamOrDevice stream) {
  constexpr std::string_view op = "mlx_tessl.l2_normalize";
  if (!(eps > 0.0f) || std::isinf(eps)) {
    refuse(op, "eps is ", eps, "; it must be finite and positive");
  }
  return reduce(op, REDUCTION_L2_NORMALIZE, x, eps, stream);
}

} // namespace tessl
