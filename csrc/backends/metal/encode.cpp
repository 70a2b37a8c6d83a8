#include "backends/metal/encode.h"

#include <mlx/allocator.h>

#include "backends/metal/metal.h"
#include "backends/metal/pipeline.h"

namespace mx = mlx::core;

namespace tessl::metal {
namespace {

constexpr size_t scratch_row = 4096; // bytes: keeps every extent of a scratch array within int32

mx::array allocate_scratch(const Scratch& scratch) {
  const auto rows = (scratch.nbytes + scratch_row - 1) / scratch_row;
  mx::array array({static_cast<int>(rows), static_cast<int>(scratch_row)}, mx::uint8, nullptr, {});
  array.set_data(mx::allocator::malloc(array.nbytes()));
  return array;
}

MTL::Size metal_size(const Size3& size) {
  return MTL::Size(size.x, size.y, size.z);
}

// Scratch is bound as inputs and outputs are: only arrays bound so are ordered between launches.
void bind(
    const Launch& launch,
    const std::vector<mx::array>& inputs,
    std::vector<mx::array>& outputs,
    std::vector<mx::array>& scratch,
    mx::metal::CommandEncoder& encoder
) {
  int slot = 0;
  for (const auto& argument : launch.arguments) {
    switch (argument.role) {
      case Argument::Role::unused:
        break;
      case Argument::Role::input:
        encoder.set_input_array(inputs[argument.index], slot, argument.offset);
        break;
      case Argument::Role::output:
        encoder.set_output_array(outputs[argument.index], slot, argument.offset);
        break;
      case Argument::Role::scratch_in:
        encoder.set_input_array(scratch[argument.index], slot, argument.offset);
        break;
      case Argument::Role::scratch_out:
        encoder.set_output_array(scratch[argument.index], slot, argument.offset);
        break;
      case Argument::Role::bytes:
        encoder.set_bytes(launch.bytes_of(argument).data(), static_cast<int>(argument.size), slot);
        break;
    }
    ++slot;
  }
}

} // namespace

void encode(
    const Plan& plan,
    const std::vector<mx::array>& inputs,
    std::vector<mx::array>& outputs,
    mx::metal::Device& device,
    mx::metal::CommandEncoder& encoder
) {
  // First of all, for this may throw, and a half-encoded plan cannot be taken back.
  FixedVector<MTL::ComputePipelineState*, decltype(plan.launches)::capacity()> pipelines;
  for (const auto& launch : plan.launches) {
    pipelines.push_back(pipeline_of(launch, device));
  }
  std::vector<mx::array> scratch;
  scratch.reserve(plan.scratch.size());
  for (const auto& item : plan.scratch) {
    scratch.push_back(allocate_scratch(item));
    encoder.add_temporary(scratch.back());
  }
  for (size_t i = 0; i < plan.launches.size(); ++i) {
    const auto& launch = plan.launches[i];
    encoder.set_compute_pipeline_state(pipelines[i]);
    bind(launch, inputs, outputs, scratch, encoder);
    if (launch.threadgroup_memory > 0) {
      encoder.set_threadgroup_memory_length(launch.threadgroup_memory, 0);
    }
    encoder.dispatch_threadgroups(metal_size(launch.grid), metal_size(launch.group));
  }
}

void encode(
    const Plan& plan, const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs, mx::Stream stream
) {
  encode(plan, inputs, outputs, mx::metal::device(stream.device), mx::metal::get_command_encoder(stream));
}

} // namespace tessl::metal
