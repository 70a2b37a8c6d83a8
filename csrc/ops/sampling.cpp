#include "ops/sampling.h"

#include <cmath>
#include <string_view>

#include <mlx/ops.h>

#include "backends/cpu/sampling.h"
#include "ops/checks.h"
#include "ops/row_op.h"
#include "ops/sampling_plan.h"

namespace tessl {
namespace {

// Inputs: logits, and noise when there is any. An index is constant to derivatives.
class Sampling : public Op {
 public:
  Sampling(mx::Stream stream, const SamplingParameters& parameters) : Op(stream), parameters_(parameters) {
  }

  Arrays make_vjp(const Arrays& primals, const Arrays&, const std::vector<int>& argnums, const Arrays&) override {
    Arrays zeros;
    for (int i : argnums) {
      zeros.push_back(mx::zeros_like(primals[i], stream()));
    }
    return zeros;
  }

  Arrays make_jvp(const Arrays& primals, const Arrays&, const std::vector<int>&) override {
    return {mx::zeros(output_shapes(primals)[0], mx::uint32, stream())};
  }

  std::pair<Arrays, std::vector<int>> make_vmap(const Arrays& inputs, const std::vector<int>& axes) override {
    const auto stacked = stack_rows(inputs, axes, stream());
    const auto primitive = std::make_shared<Sampling>(stream(), parameters_);
    return {make_outputs(primitive, mx::uint32, stacked.value_or(inputs)), {stacked ? 0 : -1}};
  }

  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override {
    const auto& shape = inputs[0].shape();
    return {mx::Shape(shape.begin(), shape.end() - 1)};
  }

  const char* name() const override {
    return "mlx_tessl.sampling";
  }

 protected:
  Plan plan(const Arrays& inputs, const Arrays&, const DeviceProfile&) const override {
    return plan_sampling(problem(inputs));
  }

  std::function<void()> compute(const Arrays& inputs, Arrays& outputs) const override {
    const auto sampling = problem(inputs);
    const cpu::Sampling work{
        .rows = sampling.rows,
        .logits = cpu_rows(inputs[0], sampling.logits),
        .noise = sampling.noise ? cpu_rows(inputs[1], *sampling.noise) : cpu::RowsInput{},
        .softcap = parameters_.softcap,
        .temperature = parameters_.temperature,
        .top_k = parameters_.top_k,
        .top_p = parameters_.top_p,
        .out = outputs[0].data<uint32_t>(),
    };
    return [work] { cpu::sample(work); };
  }

  bool same_parameters(const Op& other) const override {
    return parameters_ == static_cast<const Sampling&>(other).parameters_;
  }

 private:
  SamplingProblem problem(const Arrays& inputs) const {
    const auto noise = inputs.size() > 1 ? std::optional(Operand::of(inputs[1])) : std::nullopt;
    return make_sampling_problem(inputs[0].dtype(), parameters_, Operand::of(inputs[0]), noise);
  }

  SamplingParameters parameters_;
};

void check_softcap(std::string_view op, std::optional<float> softcap) {
  if (softcap && (!(*softcap > 0.0f) || std::isinf(*softcap))) {
    refuse(op, "softcap is ", *softcap, "; it must be finite and positive");
  }
}

} // namespace

mx::array argmax(const mx::array& logits, std::optional<float> softcap, mx::StreamOrDevice stream) {
  constexpr std::string_view op = "mlx_tessl.argmax";
  check_rows(op, "logits", logits);
  check_dtypes(op, {logits});
  check_softcap(op, softcap);
  const SamplingParameters parameters{softcap, {}, {}, {}};
  return make_outputs(std::make_shared<Sampling>(mx::to_stream(stream), parameters), mx::uint32, {logits})[0];
}

mx::array sample(
    const mx::array& logits,
    const mx::array& noise,
    float temperature,
    std::optional<int> top_k,
    std::optional<float> top_p,
    std::optional<float> softcap,
    mx::StreamOrDevice stream
) {
  constexpr std::string_view op = "mlx_tessl.sample";
  check_rows(op, "logits", logits);
  check_dtypes(op, {logits});
  if (noise.shape() != logits.shape()) {
    refuse(op, "noise has shape ", noise.shape(), "; it must be that of logits, ", logits.shape());
  }
  check_softcap(op, softcap);
  if (!(temperature >= 0.0f) || std::isinf(temperature)) {
    refuse(op, "temperature is ", temperature, "; it must be finite and not negative");
  }
  if (top_k && *top_k < 1) {
    refuse(op, "top_k is ", *top_k, "; it must be 1 or more");
  }
  if (top_p && !(*top_p > 0.0f && *top_p <= 1.0f)) {
    refuse(op, "top_p is ", *top_p, "; it must be above 0 and at most 1");
  }
  if (temperature == 0.0f) {
    return argmax(logits, softcap, stream);
  }
  SamplingParameters parameters{softcap, temperature, top_k, top_p};
  if (temperature == 1.0f) {
    parameters.temperature.reset();
  }
  if (top_k && *top_k >= logits.shape(-1)) {
    parameters.top_k.reset();
  }
  if (top_p && *top_p == 1.0f) {
    parameters.top_p.reset();
  }
  const auto s = mx::to_stream(stream);
  const Arrays inputs{logits, mx::astype(noise, mx::float32, s)};
  return make_outputs(std::make_shared<Sampling>(s, parameters), mx::uint32, inputs)[0];
}

} // namespace tessl
