#include "ops/rope.h"

#include <cmath>
#include <string_view>

#include <mlx/ops.h>

#include "backends/cpu/rope.h"
#include "ops/checks.h"
#include "ops/rope_plan.h"
#include "ops/row_op.h"

namespace tessl {
namespace {

// The primitive's inputs by name: x, those of a second array, and the weights of both.
struct RopeInputs {
  mx::array first;
  std::optional<mx::array> second;
  mx::array positions; // one column
  mx::array inv_freq;
  std::optional<mx::array> first_weight, second_weight;

  static RopeInputs from(const Arrays& inputs, bool has_second, bool normalized) {
    size_t next = 0;
    auto take = [&](bool present) { return present ? std::optional(inputs[next++]) : std::nullopt; };
    const auto first = take(true);
    const auto second = take(has_second);
    const auto positions = take(true);
    const auto inv_freq = take(true);
    const auto first_weight = take(normalized);
    return {*first, second, *positions, *inv_freq, first_weight, take(normalized && has_second)};
  }

  Arrays list() const {
    Arrays inputs{first};
    for (const auto& input : {second, std::optional(positions), std::optional(inv_freq), first_weight, second_weight}) {
      if (input) {
        inputs.push_back(*input);
      }
    }
    return inputs;
  }
};

mx::array columns_of(const mx::array& x, int first, int last, int step, mx::Stream s) {
  mx::Shape start(x.ndim(), 0);
  mx::Shape stop = x.shape();
  mx::Shape strides(x.ndim(), 1);
  start.back() = first;
  stop.back() = last;
  strides.back() = step;
  return mx::slice(x, start, stop, strides, s);
}

mx::array normalize(const mx::array& x, const mx::array& weight, const RopeParameters& parameters, mx::Stream s) {
  const auto variance = mean_of_columns(mx::square(x, s), s);
  const auto y = mx::multiply(x, mx::rsqrt(mx::add(variance, mx::array(parameters.eps), s), s), s);
  const auto w = mx::add(mx::astype(weight, mx::float32, s), mx::array(parameters.weight_offset), s);
  return mx::multiply(y, w, s);
}

mx::array compose(
    const mx::array& x,
    const std::optional<mx::array>& weight,
    const mx::array& positions,
    const mx::array& inv_freq,
    const RopeParameters& parameters,
    mx::Stream s
) {
  const int D = x.shape(-1);
  const int rotary_dim = parameters.rotary_dim;
  auto y = mx::astype(x, mx::float32, s);
  if (weight) {
    y = normalize(y, *weight, parameters, s);
  }
  const auto angles = mx::multiply(mx::astype(positions, mx::float32, s), inv_freq, s);
  const auto cosine = mx::cos(angles, s);
  const auto sine = mx::sin(angles, s);
  const int half = rotary_dim / 2;
  const bool interleaved = parameters.interleaved;
  const auto a = interleaved ? columns_of(y, 0, rotary_dim, 2, s) : columns_of(y, 0, half, 1, s);
  const auto b = interleaved ? columns_of(y, 1, rotary_dim, 2, s) : columns_of(y, half, rotary_dim, 1, s);
  const auto first = mx::subtract(mx::multiply(a, cosine, s), mx::multiply(b, sine, s), s);
  const auto second = mx::add(mx::multiply(b, cosine, s), mx::multiply(a, sine, s), s);
  auto rotated =
      interleaved ? mx::flatten(mx::stack({first, second}, -1, s), -2, -1, s) : mx::concatenate({first, second}, -1, s);
  if (rotary_dim < D) {
    rotated = mx::concatenate({rotated, columns_of(y, rotary_dim, D, 1, s)}, -1, s);
  }
  return mx::astype(rotated, x.dtype(), s);
}

class Rope : public RowOp {
 public:
  Rope(mx::Stream stream, const RopeParameters& parameters, bool has_second)
      : RowOp(stream), parameters_(parameters), has_second_(has_second) {
  }

  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override {
    std::vector<mx::Shape> shapes{inputs[0].shape()};
    if (has_second_) {
      shapes.push_back(inputs[1].shape());
    }
    return shapes;
  }

  const char* name() const override {
    return "mlx_tessl.rope";
  }

 protected:
  Plan plan(const Arrays& inputs, const Arrays&, const DeviceProfile&) const override {
    return plan_rope(problem(named(inputs)));
  }

  std::function<void()> compute(const Arrays& arrays, Arrays& outputs) const override {
    const auto inputs = named(arrays);
    const auto rope = problem(inputs);
    auto work = [&](const mx::array& x, const std::optional<mx::array>& weight, const RopeRows& rows, mx::array& out) {
      return cpu::Rope{
          .rows = rows.rows,
          .x = cpu_rows(x, rows.x),
          .weight = weight ? cpu_rows(*weight, *rows.weight) : cpu::RowsInput{},
          .positions_data = inputs.positions.data<int32_t>(),
          .positions = rows.positions,
          .inv_freq = cpu_rows(inputs.inv_freq, rope.inv_freq),
          .rotary_dim = parameters_.rotary_dim,
          .interleaved = parameters_.interleaved,
          .eps = parameters_.eps,
          .weight_offset = parameters_.weight_offset,
          .out = out.data<char>(),
      };
    };
    std::vector<cpu::Rope> works{work(inputs.first, inputs.first_weight, rope.first, outputs[0])};
    if (has_second_) {
      works.push_back(work(*inputs.second, inputs.second_weight, *rope.second, outputs[1]));
    }
    return [works] {
      for (const auto& work : works) {
        cpu::rope(work);
      }
    };
  }

  bool same_parameters(const Op& other) const override {
    const auto& op = static_cast<const Rope&>(other);
    return parameters_ == op.parameters_ && has_second_ == op.has_second_;
  }

  Meaning meaning() override {
    return [parameters = parameters_, has_second = has_second_, s = stream()](const Arrays& arrays) {
      const auto inputs = RopeInputs::from(arrays, has_second, parameters.normalized);
      auto rotated = [&](const mx::array& x, const std::optional<mx::array>& weight) {
        return compose(x, weight, inputs.positions, inputs.inv_freq, parameters, s);
      };
      Arrays outputs{rotated(inputs.first, inputs.first_weight)};
      if (has_second) {
        outputs.push_back(rotated(*inputs.second, inputs.second_weight));
      }
      return outputs;
    };
  }

  size_t row_inputs() const override {
    return has_second_ ? 3 : 2;
  }

  Arrays apply(const Arrays& inputs) override {
    return make_outputs(std::make_shared<Rope>(stream(), parameters_, has_second_), inputs[0].dtype(), inputs);
  }

 private:
  RopeInputs named(const Arrays& inputs) const {
    return RopeInputs::from(inputs, has_second_, parameters_.normalized);
  }

  RopeProblem problem(const RopeInputs& inputs) const {
    auto operand = [](const std::optional<mx::array>& array) {
      return array ? std::optional(Operand::of(*array)) : std::nullopt;
    };
    std::optional<RopeOperand> second;
    if (has_second_) {
      second = RopeOperand{Operand::of(*inputs.second), operand(inputs.second_weight)};
    }
    return make_rope_problem(
        inputs.first.dtype(),
        parameters_,
        {Operand::of(inputs.first), operand(inputs.first_weight)},
        second,
        Operand::of(inputs.positions),
        Operand::of(inputs.inv_freq)
    );
  }

  RopeParameters parameters_;
  bool has_second_;
};

// Positions as an int32 column that broadcasts to x.
mx::array column_of_positions(std::string_view op, const mx::array& positions, const mx::array& x, mx::Stream s) {
  check_integers(op, "positions", positions);
  auto column = mx::expand_dims(as_int32(positions, s), -1, s);
  if (positions.ndim() == 2 && x.ndim() > 3) {
    std::vector<int> heads;
    for (int axis = 1; axis < static_cast<int>(x.ndim()) - 2; ++axis) {
      heads.push_back(axis);
    }
    column = mx::expand_dims(column, heads, s);
  }
  const mx::Shape rows(x.shape().begin(), x.shape().end() - 1);
  const mx::Shape given(column.shape().begin(), column.shape().end() - 1);
  bool fits = given.size() <= rows.size();
  for (size_t i = 1; fits && i <= given.size(); ++i) {
    const auto size = given[given.size() - i];
    fits = size == 1 || size == rows[rows.size() - i];
  }
  if (!fits) {
    refuse(
        op, "positions has shape ", positions.shape(), "; for ", x.shape(), " it must be (T,), (B, T), or one a row"
    );
  }
  return column;
}

int check_rotary_dim(std::string_view op, std::optional<int> rotary_dim, const mx::array& inv_freq, int D) {
  const int dim = rotary_dim.value_or(D);
  if (dim < 2 || dim > D || dim % 2 != 0) {
    refuse(op, "rotary_dim is ", dim, "; it must be even, and from 2 to the ", D, " columns");
  }
  if (inv_freq.shape() != mx::Shape{dim / 2}) {
    refuse(op, "inv_freq has shape ", inv_freq.shape(), "; it must be (", dim / 2, ",), half of rotary_dim");
  }
  return dim;
}

} // namespace

mx::array rope(
    const mx::array& x,
    const mx::array& positions,
    const mx::array& inv_freq,
    std::optional<int> rotary_dim,
    bool interleaved,
    mx::StreamOrDevice stream
) {
  constexpr std::string_view op = "mlx_tessl.rope";
  check_rows(op, "x", x);
  const RopeParameters parameters{check_rotary_dim(op, rotary_dim, inv_freq, x.shape(-1)), interleaved};
  const auto dtype = check_dtypes(op, {x});
  const auto s = mx::to_stream(stream);
  const auto column = column_of_positions(op, positions, x, s);
  const RopeInputs inputs{x, {}, column, mx::astype(inv_freq, mx::float32, s), {}, {}};
  return make_outputs(std::make_shared<Rope>(s, parameters, false), dtype, inputs.list())[0];
}

std::pair<mx::array, mx::array> qk_norm_rope(
    const mx::array& q,
    const mx::array& k,
    const mx::array& q_weight,
    const mx::array& k_weight,
    const mx::array& positions,
    const mx::array& inv_freq,
    float eps,
    float weight_offset,
    std::optional<int> rotary_dim,
    mx::StreamOrDevice stream
) {
  constexpr std::string_view op = "mlx_tessl.qk_norm_rope";
  check_rows(op, "q", q);
  check_rows(op, "k", k);
  const int D = q.shape(-1);
  if (k.shape(-1) != D || k.ndim() != q.ndim()) {
    refuse(op, "k has shape ", k.shape(), "; its dimensions and its last must be as those of q, ", q.shape());
  }
  check_columns(op, "q_weight", q_weight, D);
  check_columns(op, "k_weight", k_weight, D);
  if (!(eps >= 0.0f) || std::isinf(eps)) {
    refuse(op, "eps is ", eps, "; it must be finite and not negative");
  }
  if (!std::isfinite(weight_offset)) {
    refuse(op, "weight_offset is ", weight_offset, "; it must be finite");
  }
  const RopeParameters parameters{check_rotary_dim(op, rotary_dim, inv_freq, D), false, true, eps, weight_offset};
  const auto dtype = check_dtypes(op, {q, k, q_weight, k_weight});
  const auto s = mx::to_stream(stream);
  const auto column = column_of_positions(op, positions, q, s);
  column_of_positions(op, positions, k, s);
  const auto promoted = promote({q, k, q_weight, k_weight}, dtype, s);
  const RopeInputs inputs{
      promoted[0], promoted[1], column, mx::astype(inv_freq, mx::float32, s), promoted[2], promoted[3]
  };
  const auto outputs = make_outputs(std::make_shared<Rope>(s, parameters, true), dtype, inputs.list());
  return {outputs[0], outputs[1]};
}

} // namespace tessl
