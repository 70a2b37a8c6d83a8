#include "ops/attention.h"

#include <algorithm>
#include <sstream>
#include <stdexcept>
#include <tuple>

#include <mlx/fast.h>
#include <mlx/ops.h>
#include <mlx/transforms.h>

#include "backends/cpu/attention.h"
#include "ops/op.h"

namespace tessl {
namespace {

using Arrays = std::vector<mx::array>;

// The primitive's inputs: q, k, v, and lengths when there are any.
std::optional<mx::array> lengths_of(const Arrays& inputs) {
  return inputs.size() > 3 ? std::optional(inputs[3]) : std::nullopt;
}

// The same in stock ops. Hidden keys get half the lowest number: a row of them alone stays finite, and becomes zeros.
mx::array composed(const Arrays& inputs, float scale, mx::Stream s) {
  const auto& [q, k, v] = std::tie(inputs[0], inputs[1], inputs[2]);
  const auto lengths = lengths_of(inputs);
  if (!lengths) {
    return mx::fast::scaled_dot_product_attention(q, k, v, scale, "", {}, {}, false, s);
  }
  const auto dtype = q.dtype();
  const auto length = mx::reshape(*lengths, {-1, 1, 1, 1}, s);
  const auto visible = mx::less(mx::arange(k.shape(2), s), length, s);
  const auto lowest = mx::array(mx::finfo(dtype).min / 2, dtype);
  const auto mask = mx::where(visible, mx::zeros({}, dtype, s), lowest, s);
  const auto y = mx::fast::scaled_dot_product_attention(q, k, v, scale, "array", mask, {}, false, s);
  return mx::where(mx::greater(length, mx::array(0), s), y, mx::zeros({}, dtype, s), s);
}

cpu::Element element_of(mx::Dtype dtype) {
  if (dtype == mx::float32) {
    return cpu::Element::float32;
  }
  return dtype == mx::float16 ? cpu::Element::float16 : cpu::Element::bfloat16;
}

cpu::HeadsView view_of(const mx::array& x) {
  cpu::HeadsView view{x.data<char>(), {}};
  std::copy_n(x.strides().begin(), 4, view.strides.begin());
  return view;
}

// Built for a CPU alone: shaders have no part in it, so it has no plan. Its transforms are those of the stock ops.
class Attention : public Op {
 public:
  Attention(mx::Stream stream, float scale) : Op(stream), scale_(scale) {
  }

  Arrays vjp(const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums, const Arrays&) override {
    return mx::vjp(varying(primals, argnums), chosen(primals, argnums), cotangents).second;
  }

  Arrays jvp(const Arrays& primals, const Arrays& tangents, const std::vector<int>& argnums) override {
    return mx::jvp(varying(primals, argnums), chosen(primals, argnums), tangents).second;
  }

  std::pair<Arrays, std::vector<int>> vmap(const Arrays& inputs, const std::vector<int>& axes) override {
    const auto mapped = mx::vmap(
        std::function([scale = scale_, s = stream()](const Arrays& x) { return Arrays{composed(x, scale, s)}; }), axes
    );
    return {mapped(inputs), {0}};
  }

  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override {
    auto shape = inputs[0].shape();
    shape[3] = inputs[2].shape(3);
    return {shape};
  }

  const char* name() const override {
    return "mlx_tessl.attention";
  }

 protected:
  Plan plan(const Arrays&, const Arrays&, const DeviceProfile&) const override {
    throw std::runtime_error("[mlx_tessl.attention] a CPU primitive was given to a device that runs shaders");
  }

  std::function<void()> compute(const Arrays& inputs, Arrays& outputs) const override {
    const auto& [q, k, v] = std::tie(inputs[0], inputs[1], inputs[2]);
    const auto lengths = lengths_of(inputs);
    const cpu::Attention problem{
        .element = element_of(q.dtype()),
        .B = q.shape(0),
        .heads = q.shape(1),
        .kv_heads = k.shape(1),
        .Tq = q.shape(2),
        .Tk = k.shape(2),
        .D = q.shape(3),
        .Dv = v.shape(3),
        .q = view_of(q),
        .k = view_of(k),
        .v = view_of(v),
        .lengths = lengths ? lengths->data<int32_t>() : nullptr,
        .lengths_stride = lengths ? lengths->strides(0) : 0,
        .scale = scale_,
        .out = outputs[0].data<char>(),
    };
    return [problem] { cpu::attention(problem); };
  }

  bool same_parameters(const Op& other) const override {
    return scale_ == static_cast<const Attention&>(other).scale_;
  }

 private:
  // The stock form as a function of the arguments `argnums`, the others held fixed.
  std::function<Arrays(const Arrays&)> varying(const Arrays& primals, const std::vector<int>& argnums) {
    return [primals, argnums, scale = scale_, s = stream()](const Arrays& x) {
      auto inputs = primals;
      for (size_t i = 0; i < argnums.size(); ++i) {
        inputs[argnums[i]] = x[i];
      }
      return Arrays{composed(inputs, scale, s)};
    };
  }

  static Arrays chosen(const Arrays& primals, const std::vector<int>& argnums) {
    Arrays arrays;
    for (int i : argnums) {
      arrays.push_back(primals[i]);
    }
    return arrays;
  }

  float scale_;
};

template <typename... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  std::ostringstream message;
  message << "[mlx_tessl.attention] ";
  (message << ... << parts);
  throw std::invalid_argument(message.str());
}

void check_shapes(const mx::array& q, const mx::array& k, const mx::array& v) {
  for (const auto& [name, x] : {std::pair("q", &q), {"k", &k}, {"v", &v}}) {
    if (x->ndim() != 4) {
      refuse(name, " has shape ", x->shape(), "; it must have 4 dimensions, [B, H, T, D]");
    }
  }
  if (k.shape(0) != q.shape(0) || k.shape(3) != q.shape(3)) {
    refuse("k has shape ", k.shape(), "; its B and D must be those of q, ", q.shape());
  }
  if (k.shape(1) == 0 || q.shape(1) % k.shape(1) != 0) {
    refuse("k has ", k.shape(1), " heads; they must divide the ", q.shape(1), " of q");
  }
  if (!std::equal(k.shape().begin(), k.shape().end() - 1, v.shape().begin())) {
    refuse("v has shape ", v.shape(), "; its B, H and T must be those of k, ", k.shape());
  }
}

void check_lengths(const mx::array& lengths, int B) {
  if (lengths.shape() != mx::Shape{B} || !mx::issubdtype(lengths.dtype(), mx::integer)) {
    refuse("lengths has shape ", lengths.shape(), " and dtype ", lengths.dtype(), "; it must be ", B, " integers");
  }
}

} // namespace

mx::array attention(
    const mx::array& q,
    const mx::array& k,
    const mx::array& v,
    float scale,
    const std::optional<mx::array>& lengths,
    mx::StreamOrDevice stream_or_device
) {
  check_shapes(q, k, v);
  const auto dtype = mx::result_type({q, k, v});
  if (dtype != mx::float32 && dtype != mx::float16 && dtype != mx::bfloat16) {
    refuse("operands promote to ", dtype, "; they must promote to float32, float16 or bfloat16");
  }
  const auto s = mx::to_stream(stream_or_device);
  Arrays inputs{mx::astype(q, dtype, s), mx::astype(k, dtype, s), mx::astype(v, dtype, s)};
  if (lengths) {
    check_lengths(*lengths, q.shape(0));
    inputs.push_back(mx::astype(*lengths, mx::int32, s));
  }
  if (s.device == mx::Device::gpu || current_emulation()) {
    return composed(inputs, scale, s);
  }
  const mx::Shape shape{q.shape(0), q.shape(1), q.shape(2), v.shape(3)};
  return mx::array(shape, dtype, std::make_shared<Attention>(s, scale), std::move(inputs));
}

} // namespace tessl
