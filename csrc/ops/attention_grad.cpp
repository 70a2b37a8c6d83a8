#include "ops/attention_grad.h"

#include <algorithm>

#include <mlx/ops.h>
#include <mlx/transforms.h>

#include "backends/cpu/attention_grad.h"
#include "ops/attention_fold.h"
#include "ops/attention_meaning.h"
#include "ops/attention_plan.h"
#include "ops/op.h"
#include "ops/varying.h"

namespace tessl {
namespace {

// Inputs are those of attention's primitive, then out, ends and dout.
class AttentionGrad : public Op {
 public:
  AttentionGrad(mx::Stream stream, const AttentionParameters& parameters, const AttentionWants& wants)
      : Op(stream), parameters_(parameters), wants_(wants) {
  }

  // out and ends are functions of the other inputs, through which the derivatives go: by themselves they have none.
  Arrays make_vjp(
      const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums, const Arrays&
  ) override {
    const auto [free, places] = without_results(argnums, primals.size());
    const auto gradients = mx::vjp(varying(meaning(), primals, free), chosen(primals, free), cotangents).second;
    Arrays result;
    for (size_t i = 0; i < argnums.size(); ++i) {
      result.push_back(places[i] < 0 ? mx::zeros_like(primals[argnums[i]], stream()) : gradients[places[i]]);
    }
    return result;
  }

  Arrays make_jvp(const Arrays& primals, const Arrays& tangents, const std::vector<int>& argnums) override {
    const auto [free, places] = without_results(argnums, primals.size());
    Arrays free_tangents;
    for (size_t i = 0; i < argnums.size(); ++i) {
      if (places[i] >= 0) {
        free_tangents.push_back(tangents[i]);
      }
    }
    return mx::jvp(varying(meaning(), primals, free), chosen(primals, free), free_tangents).second;
  }

  std::pair<Arrays, std::vector<int>> make_vmap(const Arrays& inputs, const std::vector<int>& axes) override {
    const auto shared = wants_.prefix || wants_.mask || wants_.sinks;
    if (const auto folded = shared ? std::nullopt : fold_into_batch(inputs, axes, parameters_, stream())) {
      auto outputs = build(folded->inputs);
      return {unfold_batch(outputs, folded->members, stream()), std::vector<int>(outputs.size(), 0)};
    }
    const auto outputs = mx::vmap(meaning(), axes)(inputs);
    return {outputs, std::vector<int>(outputs.size(), 0)};
  }

  std::vector<mx::Shape> output_shapes(const Arrays& arrays) override {
    std::vector<mx::Shape> shapes;
    const auto places = gradient_places(parameters_, wants_);
    for (size_t i = 0; i < places.size(); ++i) {
      if (places[i] >= 0) {
        shapes.push_back(arrays[i].shape());
      }
    }
    return shapes;
  }

  const char* name() const override {
    return "mlx_tessl.attention_grad";
  }

  Arrays build(const Arrays& inputs) {
    std::vector<mx::Dtype> dtypes;
    const auto places = gradient_places(parameters_, wants_);
    for (size_t i = 0; i < places.size(); ++i) {
      if (places[i] >= 0) {
        dtypes.push_back(inputs[i].dtype());
      }
    }
    auto primitive = std::make_shared<AttentionGrad>(stream(), parameters_, wants_);
    return mx::array::make_arrays(output_shapes(inputs), dtypes, primitive, inputs);
  }

 protected:
  Plan plan(const Arrays& inputs, const Arrays&, const DeviceProfile& device) const override {
    return plan_attention_grad(make_problem(inputs), device);
  }

  std::function<void()> compute(const Arrays& inputs, Arrays& outputs) const override {
    const auto problem = make_problem(inputs);
    auto place = [&](const std::optional<uint8_t>& output) { return output ? outputs[*output].data<void>() : nullptr; };
    cpu::AttentionGrad work{
        .forward = make_cpu_attention(problem.forward, inputs),
        .out = heads_view(inputs, problem.out),
        .ends = heads_view(inputs, problem.ends),
        .dout = heads_view(inputs, problem.dout),
        .dq = place(problem.dq),
        .dk = place(problem.dk),
        .dv = place(problem.dv),
        .dprefix_k = place(problem.dprefix_k),
        .dprefix_v = place(problem.dprefix_v),
        .dsinks = static_cast<float*>(place(problem.dsinks)),
        .dmask = place(problem.dmask),
    };
    std::copy(problem.mask_shape.begin(), problem.mask_shape.end(), work.mask_shape.begin());
    return [work] { cpu::attention_grad(work); };
  }

  bool same_parameters(const Op& other) const override {
    const auto& op = static_cast<const AttentionGrad&>(other);
    return parameters_ == op.parameters_ && wants_ == op.wants_;
  }

 private:
  AttentionGradProblem make_problem(const Arrays& arrays) const {
    const auto inputs = AttentionInputs::from(arrays, parameters_);
    AttentionGradProblem problem;
    problem.forward = make_attention_problem(inputs, parameters_);
    const auto first = static_cast<uint8_t>(arrays.size() - 3);
    problem.out = attention_operand(arrays[first], first);
    problem.ends = attention_operand(arrays[first + 1], first + 1);
    problem.dout = attention_operand(arrays[first + 2], first + 2);
    uint8_t next = 0;
    auto take = [&](bool wanted) { return wanted ? std::optional(next++) : std::nullopt; };
    problem.dq = take(wants_.q);
    problem.dk = take(wants_.keys);
    problem.dv = take(wants_.keys);
    problem.dprefix_k = take(wants_.prefix);
    problem.dprefix_v = take(wants_.prefix);
    problem.dmask = take(wants_.mask);
    problem.dsinks = take(wants_.sinks);
    if (inputs.mask) {
      const auto& shape = inputs.mask->shape();
      std::copy(shape.begin(), shape.end(), problem.mask_shape.end() - static_cast<int64_t>(shape.size()));
    }
    return problem;
  }

  // The gradients as those of the stock form, whatever out and ends are.
  std::function<Arrays(const Arrays&)> meaning() {
    return [parameters = parameters_, wants = wants_, s = stream()](const Arrays& arrays) {
      const auto places = gradient_places(parameters, wants);
      std::vector<int> wanted;
      for (size_t i = 0; i < places.size(); ++i) {
        if (places[i] >= 0) {
          wanted.push_back(static_cast<int>(i));
        }
      }
      const Arrays forward(arrays.begin(), arrays.end() - 3);
      const auto f = [parameters, s](const Arrays& inputs) {
        return Arrays{composed_attention(AttentionInputs::from(inputs, parameters), parameters, s)};
      };
      return mx::vjp(varying(f, forward, wanted), chosen(forward, wanted), {arrays.back()}).second;
    };
  }

  // Those of `argnums` that are neither out nor ends, and where in them each of `argnums` is.
  static std::pair<std::vector<int>, std::vector<int>> without_results(
      const std::vector<int>& argnums, size_t inputs_count
  ) {
    std::vector<int> free;
    std::vector<int> places;
    for (int i : argnums) {
      const bool is_result = i == static_cast<int>(inputs_count) - 3 || i == static_cast<int>(inputs_count) - 2;
      places.push_back(is_result ? -1 : static_cast<int>(free.size()));
      if (!is_result) {
        free.push_back(i);
      }
    }
    return {free, places};
  }

  AttentionParameters parameters_;
  AttentionWants wants_;
};

} // namespace

std::vector<int> gradient_places(const AttentionParameters& parameters, const AttentionWants& wants) {
  std::vector<int> places;
  int next = 0;
  auto add = [&](bool present, bool wanted) {
    if (present) {
      places.push_back(wanted ? next++ : -1);
    }
  };
  add(true, wants.q);
  add(true, wants.keys);
  add(true, wants.keys);
  add(parameters.prefix, wants.prefix);
  add(parameters.prefix, wants.prefix);
  add(parameters.mask_kind != AttentionMask::none, wants.mask);
  add(parameters.starts, false);
  add(parameters.lengths, false);
  add(parameters.sinks, wants.sinks);
  return places;
}

std::vector<mx::array> attention_grad(
    const AttentionInputs& inputs,
    const AttentionParameters& parameters,
    const AttentionWants& wants,
    const mx::array& out,
    const mx::array& ends,
    const mx::array& dout,
    mx::Stream stream
) {
  auto arrays = inputs.list();
  arrays.insert(arrays.end(), {out, ends, dout});
  return AttentionGrad(stream, parameters, wants).build(arrays);
}

} // namespace tessl
