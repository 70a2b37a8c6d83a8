#include "ops/quantized_embedding_plan.h"

#include <array>
#include <limits>

#include "kernels/args/quantized_embedding.h"
#include "ops/copy_plan.h"
#include "ops/refusal.h"

namespace tessl {
namespace {

constexpr int32_t octet_size = 8;
constexpr uint32_t octets_of_group = 32;

const Kernel* kernel_of(mlx::core::Dtype dtype) {
  constexpr auto portable = Capability::portable;
  static const Kernel* float32 = intern_kernel("quantized_embedding_float32", "quantized_embedding", portable);
  static const Kernel* float16 = intern_kernel("quantized_embedding_float16", "quantized_embedding", portable);
  static const Kernel* bfloat16 = intern_kernel("quantized_embedding_bfloat16", "quantized_embedding", portable);
  return dtype == mlx::core::float32 ? float32 : dtype == mlx::core::float16 ? float16 : bfloat16;
}

struct PlacedRows {
  Argument argument;
  int64_t row_stride = 0;
};

PlacedRows place(Plan& plan, uint8_t input, const Operand& x, size_t itemsize) {
  const int64_t row_stride = x.shape[0] == 1 ? x.shape[1] : x.strides[0];
  if (x.shape[1] <= 1 || x.strides[1] == 1) {
    return {Argument::input(input), row_stride};
  }
  const std::array shape{x.shape[0], x.shape[1]};
  const std::array strides{x.strides[0], x.strides[1]};
  const auto bytes = static_cast<size_t>(shape[0]) * static_cast<size_t>(shape[1]) * itemsize;
  const Argument scratch = plan.add_scratch(bytes);
  add_copy(plan, itemsize, Argument::input(input), x.offset, scratch, shape, strides);
  return {Argument::scratch_in(scratch.index), shape[1]};
}

} // namespace

Plan plan_quantized_embedding(const QuantizedEmbeddingProblem& problem) {
  const auto& quantization = problem.quantization;
  const int32_t D = problem.scales.shape[1] * quantization.group_size;
  Plan plan;
  if (problem.ids == 0 || D == 0) {
    return plan;
  }
  if (problem.ids > std::numeric_limits<int32_t>::max()) {
    refuse("mlx_tessl.quantized_embedding", "ids has ", problem.ids, " elements; it may have 2147483647");
  }
  const size_t itemsize = problem.dtype.size();
  const auto w = place(plan, 1, problem.w, sizeof(uint32_t));
  const auto scales = place(plan, 2, problem.scales, quantization.is_affine() ? itemsize : 1);
  const auto biases = problem.biases ? place(plan, 3, *problem.biases, itemsize) : PlacedRows{};

  plan.launches.push_back({});
  Launch& launch = plan.launches.back();
  launch.kernel = kernel_of(problem.dtype);
  launch.constants.push_back(FunctionConstant::int32(11, quantization.mode));
  launch.constants.push_back(FunctionConstant::int32(12, quantization.bits));
  launch.constants.push_back(FunctionConstant::int32(13, quantization.group_size));
  launch.constants.push_back(FunctionConstant::boolean(14, problem.biases.has_value()));
  launch.arguments.push_back(Argument::input(0));
  launch.arguments.push_back(w.argument);
  launch.arguments.push_back(scales.argument);
  launch.arguments.push_back(biases.argument);
  launch.arguments.push_back(Argument::output(0));
  launch.push_bytes(QuantizedEmbeddingArgs{problem.w.shape[0], D, w.row_stride, scales.row_stride, biases.row_stride});
  const auto octets = static_cast<uint32_t>(D / octet_size);
  launch.group = {octets_of_group, 1, 1};
  launch.grid = {(octets + octets_of_group - 1) / octets_of_group, static_cast<uint32_t>(problem.ids), 1};
  return plan;
}

} // namespace tessl
