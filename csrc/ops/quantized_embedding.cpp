#include "ops/quantized_embedding.h"

#include <algorithm>
#include <limits>

#include <mlx/ops.h>

#include "backends/cpu/quantized_embedding.h"
#include "ops/checks.h"
#include "ops/op.h"
#include "ops/quantization.h"
#include "ops/quantized_embedding_plan.h"
#include "ops/refusal.h"

namespace tessl {
namespace {

constexpr std::string_view op_name = "mlx_tessl.quantized_embedding";

// The primitive's inputs by name: ids int32 and contiguous.
struct EmbeddingInputs {
  mx::array ids;
  mx::array w;
  mx::array scales;
  std::optional<mx::array> biases;

  static EmbeddingInputs from(const std::vector<mx::array>& inputs) {
    return {inputs[0], inputs[1], inputs[2], inputs.size() > 3 ? std::optional(inputs[3]) : std::nullopt};
  }

  std::vector<mx::array> list() const {
    std::vector<mx::array> inputs{ids, w, scales};
    if (biases) {
      inputs.push_back(*biases);
    }
    return inputs;
  }
};

mx::array build(const EmbeddingInputs& inputs, const Quantization& quantization, mx::Stream stream);

mx::Dtype dtype_of(const EmbeddingInputs& inputs, const Quantization& quantization) {
  return quantization.is_affine() ? inputs.scales.dtype() : mx::bfloat16;
}

mx::Shape shape_of(const EmbeddingInputs& inputs, const Quantization& quantization) {
  auto shape = inputs.ids.shape();
  shape.push_back(inputs.scales.shape(-1) * quantization.group_size);
  return shape;
}

cpu::MatrixView view_of(const mx::array& matrix) {
  const auto stride = [&](int axis) { return matrix.shape(axis) == 1 ? 0 : matrix.strides(axis); };
  return {matrix.data<char>(), {stride(0), stride(1)}};
}

class QuantizedEmbedding : public Op {
 public:
  QuantizedEmbedding(mx::Stream stream, const Quantization& quantization) : Op(stream), quantization_(quantization) {
  }

  std::vector<mx::array> make_vjp(
      const std::vector<mx::array>& primals,
      const std::vector<mx::array>& cotangents,
      const std::vector<int>& argnums,
      const std::vector<mx::array>& outputs
  ) override;

  std::vector<mx::array> make_jvp(
      const std::vector<mx::array>& primals, const std::vector<mx::array>& tangents, const std::vector<int>& argnums
  ) override;

  std::pair<std::vector<mx::array>, std::vector<int>> make_vmap(
      const std::vector<mx::array>& inputs, const std::vector<int>& axes
  ) override;

  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
    return {shape_of(EmbeddingInputs::from(inputs), quantization_)};
  }

  const char* name() const override {
    return "mlx_tessl.quantized_embedding";
  }

 protected:
  Plan plan(
      const std::vector<mx::array>& arrays, const std::vector<mx::array>& outputs, const DeviceProfile&
  ) const override {
    const auto inputs = EmbeddingInputs::from(arrays);
    return plan_quantized_embedding({
        .dtype = outputs[0].dtype(),
        .quantization = quantization_,
        .ids = static_cast<int64_t>(inputs.ids.size()),
        .w = Operand::of(inputs.w),
        .scales = Operand::of(inputs.scales),
        .biases = inputs.biases ? std::optional(Operand::of(*inputs.biases)) : std::nullopt,
    });
  }

  std::function<void()> compute(const std::vector<mx::array>& arrays, std::vector<mx::array>& outputs) const override {
    const auto inputs = EmbeddingInputs::from(arrays);
    const auto words = view_of(inputs.w);
    return [embedding = cpu::QuantizedEmbedding{
                .dtype = outputs[0].dtype(),
                .w =
                    {.quantization = quantization_,
                     .values = outputs[0].shape(-1),
                     .words = static_cast<const uint32_t*>(words.data),
                     .word_strides = words.strides,
                     .scales = view_of(inputs.scales),
                     .biases = inputs.biases ? view_of(*inputs.biases) : cpu::MatrixView{}},
                .rows = inputs.w.shape(0),
                .ids = {inputs.ids.data<int32_t>(), inputs.ids.size()},
                .out = outputs[0].data<char>(),
            }] { cpu::quantized_embedding(embedding); };
  }

  bool same_parameters(const Op& other) const override {
    return quantization_ == static_cast<const QuantizedEmbedding&>(other).quantization_;
  }

 private:
  mx::array scatter_groups(const mx::array& ids, const mx::array& gradient, const mx::array& primal);

  Quantization quantization_;
};

// ids as rows of the weights, and whether there is such a row; where there is none the row is 0.
std::pair<mx::array, mx::array> valid_rows(const mx::array& ids, int rows, mx::Stream s) {
  const auto zero = mx::array(0, mx::int32);
  const auto count = mx::array(rows, mx::int32);
  const auto row = mx::where(mx::less(ids, zero, s), mx::add(ids, count, s), ids, s);
  const auto valid = mx::logical_and(mx::greater_equal(row, zero, s), mx::less(row, count, s), s);
  return {mx::where(valid, row, zero, s), valid};
}

// The sum over each group of a gradient [ids..., D], added up in the rows of the scales or biases that gave it.
mx::array QuantizedEmbedding::scatter_groups(const mx::array& ids, const mx::array& gradient, const mx::array& primal) {
  const auto s = stream();
  const int groups = primal.shape(-1);
  const auto [rows, valid] = valid_rows(mx::flatten(ids, s), primal.shape(0), s);
  const auto sums = mx::sum(mx::unflatten(gradient, -1, {groups, quantization_.group_size}, s), -1, false, s);
  const auto flat = mx::reshape(sums, {-1, 1, groups}, s);
  const auto zero = mx::array(0.0f, mx::float32);
  const auto kept = mx::where(mx::reshape(valid, {-1, 1, 1}, s), flat, zero, s);
  const auto zeros = mx::zeros(primal.shape(), mx::float32, s);
  return mx::astype(mx::scatter_add(zeros, rows, kept, 0, s), primal.dtype(), s);
}

std::vector<mx::array> QuantizedEmbedding::make_vjp(
    const std::vector<mx::array>& primals,
    const std::vector<mx::array>& cotangents,
    const std::vector<int>& argnums,
    const std::vector<mx::array>&
) {
  const auto s = stream();
  const auto inputs = EmbeddingInputs::from(primals);
  const auto dy = mx::astype(cotangents[0], mx::float32, s);
  std::vector<mx::array> gradients;
  for (int i : argnums) {
    if (i == 0) {
      gradients.push_back(mx::zeros_like(inputs.ids, s));
    } else if (i == 1 || !quantization_.is_affine()) {
      refuse(op_name, i == 1 ? "w" : "scales", " holds codes, which have no gradient");
    } else if (i == 2) {
      // weight = scale * code + bias
      const auto one = mx::ones(inputs.scales.shape(), mx::float32, s);
      const auto zero = mx::zeros(inputs.scales.shape(), mx::float32, s);
      const auto codes = build({inputs.ids, inputs.w, one, zero}, quantization_, s);
      gradients.push_back(scatter_groups(inputs.ids, mx::multiply(dy, codes, s), inputs.scales));
    } else {
      gradients.push_back(scatter_groups(inputs.ids, dy, *inputs.biases));
    }
  }
  return gradients;
}

// Linear in (scales, biases) together.
std::vector<mx::array> QuantizedEmbedding::make_jvp(
    const std::vector<mx::array>& primals, const std::vector<mx::array>& tangents, const std::vector<int>& argnums
) {
  const auto s = stream();
  const auto inputs = EmbeddingInputs::from(primals);
  std::optional<mx::array> dscales, dbiases;
  for (size_t i = 0; i < argnums.size(); ++i) {
    if (argnums[i] == 0) {
      continue;
    }
    if (argnums[i] == 1 || !quantization_.is_affine()) {
      refuse(op_name, argnums[i] == 1 ? "w" : "scales", " holds codes, which have no tangent");
    }
    (argnums[i] == 2 ? dscales : dbiases) = tangents[i];
  }
  if (!dscales && !dbiases) {
    return {mx::zeros(shape_of(inputs, quantization_), dtype_of(inputs, quantization_), s)};
  }
  const auto zero = mx::zeros_like(inputs.scales, s);
  return {build({inputs.ids, inputs.w, dscales.value_or(zero), dbiases.value_or(zero)}, quantization_, s)};
}

// Mapped weights are one taller matrix, ids being moved to the rows of their own; one that is no row stays none.
std::pair<std::vector<mx::array>, std::vector<int>> QuantizedEmbedding::make_vmap(
    const std::vector<mx::array>& arrays, const std::vector<int>& axes
) {
  const auto s = stream();
  const bool weights_mapped = std::any_of(axes.begin() + 1, axes.end(), [](int axis) { return axis >= 0; });
  if (!weights_mapped) {
    return {{build(EmbeddingInputs::from(arrays), quantization_, s)}, {axes[0]}};
  }
  int members = 1;
  for (size_t i = 0; i < arrays.size(); ++i) {
    members = axes[i] >= 0 ? arrays[i].shape(axes[i]) : members;
  }
  auto mapped = [&](size_t i) {
    if (axes[i] >= 0) {
      return mx::moveaxis(arrays[i], axes[i], 0, s);
    }
    auto shape = arrays[i].shape();
    shape.insert(shape.begin(), members);
    return mx::broadcast_to(arrays[i], shape, s);
  };
  auto stacked = [&](size_t i) { return mx::flatten(mapped(i), 0, 1, s); };

  const auto ids = mapped(0);
  const int rows = arrays[2].shape(axes[2] == 0 ? 1 : 0);
  const auto [row, valid] = valid_rows(ids, rows, s);
  mx::Shape first_shape(ids.ndim(), 1);
  first_shape[0] = members;
  const auto first = mx::reshape(mx::multiply(mx::arange(members, s), mx::array(rows, mx::int32), s), first_shape, s);
  const auto nowhere = mx::array(std::numeric_limits<int32_t>::max(), mx::int32);
  const EmbeddingInputs inputs{
      mx::where(valid, mx::add(row, first, s), nowhere, s),
      stacked(1),
      stacked(2),
      arrays.size() > 3 ? std::optional(stacked(3)) : std::nullopt
  };
  return {{build(inputs, quantization_, s)}, {0}};
}

mx::array build(const EmbeddingInputs& inputs, const Quantization& quantization, mx::Stream stream) {
  check_memory(op_name, shape_of(inputs, quantization), dtype_of(inputs, quantization));
  auto list = inputs.list();
  list[0] = mx::contiguous(inputs.ids, false, stream);
  return mx::array(
      shape_of(inputs, quantization),
      dtype_of(inputs, quantization),
      std::make_shared<QuantizedEmbedding>(stream, quantization),
      std::move(list)
  );
}

} // namespace

mx::array quantized_embedding(
    const mx::array& ids,
    const mx::array& w,
    const mx::array& scales,
    const std::optional<mx::array>& biases,
    std::optional<int> group_size,
    std::optional<int> bits,
    const std::string& mode,
    mx::StreamOrDevice stream_or_device
) {
  const auto quantization = parse_quantization(op_name, mode, group_size, bits);
  if (!mx::issubdtype(ids.dtype(), mx::integer)) {
    refuse(op_name, "ids is ", ids.dtype(), "; it must be of an integer dtype");
  }
  if (w.ndim() != 2) {
    refuse(op_name, "w has shape ", w.shape(), "; it must be (V, words of a row)");
  }
  check_packed_matrix(op_name, quantization, w, scales, biases);
  const auto stream = mx::to_stream(stream_or_device);
  EmbeddingInputs inputs{as_int32(ids, stream), w, scales, biases};
  if (quantization.is_affine()) {
    const auto dtype = mx::result_type(std::vector<mx::array>{scales, *biases});
    if (dtype != mx::float32 && dtype != mx::float16 && dtype != mx::bfloat16) {
      refuse(op_name, "scales and biases promote to ", dtype, "; they must promote to float32, float16 or bfloat16");
    }
    inputs.scales = mx::astype(scales, dtype, stream);
    inputs.biases = mx::astype(*biases, dtype, stream);
  }
  return build(inputs, quantization, stream);
}

} // namespace tessl
