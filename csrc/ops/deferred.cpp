#include "ops/deferred.h"

#include <memory>
#include <utility>

#include <mlx/ops.h>
#include <mlx/primitives.h>
#include <mlx/transforms.h>

#include "launch/emulation.h"
#include "ops/varying.h"

namespace tessl {
namespace {

using Arrays = std::vector<mx::array>;

// Above 0 on a thread that builds for known shapes, even if that is while something else is traced.
thread_local int known_shapes = 0;

class KnownShapes {
 public:
  KnownShapes() {
    ++known_shapes;
  }
  ~KnownShapes() {
    --known_shapes;
  }
};

// x without the graph it came from.
mx::array evaluated(const mx::array& x) {
  mx::array leaf(x.shape(), x.dtype(), nullptr, {});
  leaf.copy_shared_buffer(x);
  leaf.set_status(mx::array::Status::available);
  return leaf;
}

class Deferred : public mx::Primitive {
 public:
  Deferred(mx::Stream stream, Builder build)
      : Primitive(stream), build_(std::move(build)), emulation_(current_emulation()) {
  }

  void eval_cpu(const Arrays& inputs, Arrays& outputs) override {
    evaluate(inputs, outputs);
  }

  void eval_gpu(const Arrays& inputs, Arrays& outputs) override {
    evaluate(inputs, outputs);
  }

  Arrays vjp(const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums, const Arrays&) override {
    auto all = primals;
    all.insert(all.end(), cotangents.begin(), cotangents.end());
    auto gradients = [build = build_, argnums, count = static_cast<int64_t>(primals.size())](const Arrays& x) {
      const Arrays inputs(x.begin(), x.begin() + count);
      return mx::vjp(varying(build, inputs, argnums), chosen(inputs, argnums), {x.begin() + count, x.end()}).second;
    };
    return when_shapes_are_known(all, gradients, stream());
  }

  Arrays jvp(const Arrays& primals, const Arrays& tangents, const std::vector<int>& argnums) override {
    auto all = primals;
    all.insert(all.end(), tangents.begin(), tangents.end());
    auto derivative = [build = build_, argnums, count = static_cast<int64_t>(primals.size())](const Arrays& x) {
      const Arrays inputs(x.begin(), x.begin() + count);
      return mx::jvp(varying(build, inputs, argnums), chosen(inputs, argnums), {x.begin() + count, x.end()}).second;
    };
    return when_shapes_are_known(all, derivative, stream());
  }

  std::pair<Arrays, std::vector<int>> vmap(const Arrays& inputs, const std::vector<int>& axes) override {
    auto mapped = [build = build_, axes](const Arrays& x) { return mx::vmap(build, axes)(x); };
    const auto outputs = when_shapes_are_known(inputs, mapped, stream());
    return {outputs, std::vector<int>(outputs.size(), 0)};
  }

  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override {
    std::vector<mx::Shape> shapes;
    for (const auto& output : built(inputs)) {
      shapes.push_back(output.shape());
    }
    return shapes;
  }

  const char* name() const override {
    return "mlx_tessl.deferred";
  }

  // As it would have been where this primitive was made.
  Arrays built(const Arrays& inputs) const {
    const KnownShapes known;
    const WithEmulation emulation(emulation_);
    return build_(inputs);
  }

 private:
  // MLX evaluates what is built, on this stream and in order with its other work.
  void evaluate(const Arrays& inputs, Arrays& outputs) {
    Arrays leaves;
    for (const auto& input : inputs) {
      leaves.push_back(evaluated(input));
    }
    auto results = built(leaves);
    for (auto& result : results) {
      if (result.has_primitive() && result.primitive().stream() != stream()) {
        result = mx::copy(result, stream());
      }
    }
    mx::async_eval(results);
    for (size_t i = 0; i < results.size(); ++i) {
      outputs[i].copy_shared_buffer(results[i]);
    }
  }

  Builder build_;
  std::shared_ptr<const Emulation> emulation_;
};

} // namespace

// Only then does the number of elements belong to the graph.
bool shapes_may_change() {
  return known_shapes == 0 && mx::number_of_elements(mx::array({0}, mx::int32), {0}, false).has_primitive();
}

Arrays when_shapes_are_known(const Arrays& inputs, Builder build, mx::Stream stream) {
  if (!shapes_may_change()) {
    return build(inputs);
  }
  auto primitive = std::make_shared<Deferred>(stream, std::move(build));
  std::vector<mx::Shape> shapes;
  std::vector<mx::Dtype> dtypes;
  for (const auto& output : primitive->built(inputs)) {
    shapes.push_back(output.shape());
    dtypes.push_back(output.dtype());
  }
  return mx::array::make_arrays(shapes, dtypes, primitive, inputs);
}

} // namespace tessl
