#include "ops/op.h"

#include <algorithm>
#include <future>
#include <typeinfo>

#include <mlx/allocator.h>
#include <mlx/backend/cpu/encoder.h>

#include "backends/cpu/ready.h"
#include "backends/emulator/emulator.h"
#include "backends/metal/metal.h"
#include "launch/trace.h"

namespace tessl {
namespace {

bool all_empty(const std::vector<mx::array>& outputs) {
  return std::all_of(outputs.begin(), outputs.end(), [](const auto& output) { return output.size() == 0; });
}

// The bytes that an array's elements span around its first one; strides may be negative.
emulator::Buffer buffer_of(const mx::array& array) {
  if (array.size() == 0) {
    return {};
  }
  int64_t first = 0;
  int64_t last = 0;
  for (size_t i = 0; i < array.ndim(); ++i) {
    const int64_t reach = (array.shape(i) - 1) * array.strides(i);
    (reach < 0 ? first : last) += reach;
  }
  const auto itemsize = static_cast<int64_t>(array.itemsize());
  return {
      const_cast<char*>(array.data<char>()),
      static_cast<size_t>((last + 1) * itemsize),
      static_cast<size_t>(-first * itemsize)
  };
}

// Runs `task` on the stream, after what is queued there, and throws here what it throws. What a task throws on its own
// is lost to some of the ways in which MLX evaluates an array, np.array(x) among them.
void run_and_wait(mx::cpu::CommandEncoder& encoder, std::function<void()> task) {
  auto packaged = std::make_shared<std::packaged_task<void()>>(std::move(task));
  auto result = packaged->get_future();
  encoder.dispatch([packaged] { (*packaged)(); });
  result.get();
}

std::vector<emulator::Buffer> buffers_of(const std::vector<mx::array>& arrays) {
  std::vector<emulator::Buffer> buffers(arrays.size());
  std::transform(arrays.begin(), arrays.end(), buffers.begin(), buffer_of);
  return buffers;
}

} // namespace

Op::Op(mx::Stream stream) : Primitive(stream) {
  if (stream.device == mx::Device::cpu) {
    emulation_ = current_emulation();
  }
}

void Op::allocate(const std::vector<mx::array>&, std::vector<mx::array>& outputs) const {
  for (auto& output : outputs) {
    output.set_data(mx::allocator::malloc(output.nbytes()));
  }
}

void Op::eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  if (emulation_) {
    Op::allocate(inputs, outputs);
  } else {
    allocate(inputs, outputs);
  }
  if (all_empty(outputs)) {
    return;
  }
  auto& encoder = mx::cpu::get_command_encoder(stream());
  for (const auto& input : inputs) {
    encoder.set_input_array(input);
  }
  for (auto& output : outputs) {
    encoder.set_output_array(output);
  }
  if (emulation_) {
    run_and_wait(encoder, emulate(inputs, outputs));
  } else {
    trace_compute(name());
    cpu::require_ready();
    encoder.dispatch(compute(inputs, outputs));
  }
}

std::function<void()> Op::emulate(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) const {
  auto planned = std::make_shared<const Plan>(plan(inputs, outputs, emulation_->device));
  trace_launches(name(), "emulator", *planned);
  return [planned, emulation = emulation_, in = buffers_of(inputs), out = buffers_of(outputs)] {
    emulator::run(*planned, in, out, *emulation);
  };
}

void Op::eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  allocate(inputs, outputs);
  if (all_empty(outputs)) {
    return;
  }
  const auto planned = plan(inputs, outputs, metal::device_profile(device()));
  trace_launches(name(), "metal", planned);
  metal::encode(planned, inputs, outputs, stream());
}

bool Op::is_equivalent(const mx::Primitive& other) const {
  if (typeid(*this) != typeid(other)) {
    return false;
  }
  const auto& op = static_cast<const Op&>(other);
  const bool same_emulation =
      emulation_ == op.emulation_ || (emulation_ && op.emulation_ && *emulation_ == *op.emulation_);
  return same_emulation && same_parameters(op);
}

} // namespace tessl
