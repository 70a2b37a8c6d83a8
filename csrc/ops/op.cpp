#include "ops/op.h"

#include <algorithm>
#include <future>
#include <string_view>
#include <typeinfo>

#include <unistd.h>

#include <mlx/allocator.h>
#include <mlx/backend/cpu/encoder.h>

#include "backends/cpu/ready.h"
#include "backends/emulator/emulator.h"
#include "backends/metal/metal.h"
#include "launch/trace.h"
#include "ops/deferred.h"
#include "ops/refusal.h"

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

Arrays joined(Arrays arrays, const Arrays& more) {
  arrays.insert(arrays.end(), more.begin(), more.end());
  return arrays;
}

std::vector<emulator::Buffer> buffers_of(const std::vector<mx::array>& arrays) {
  std::vector<emulator::Buffer> buffers(arrays.size());
  std::transform(arrays.begin(), arrays.end(), buffers.begin(), buffer_of);
  return buffers;
}

} // namespace

void check_memory(std::string_view op, const mx::Shape& shape, mx::Dtype dtype) {
  static const double bytes = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  double needed = dtype.size();
  for (int size : shape) {
    needed *= size;
  }
  if (needed > bytes) {
    refuse(op, "a result of shape ", shape, " takes ", needed / 1e9, " GB; this machine has ", bytes / 1e9, " GB");
  }
}

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
  for (const auto& output : outputs) {
    check_memory(name(), output.shape(), output.dtype());
  }
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
  for (const auto& output : outputs) {
    check_memory(name(), output.shape(), output.dtype());
  }
  allocate(inputs, outputs);
  if (all_empty(outputs)) {
    return;
  }
  const auto planned = plan(inputs, outputs, metal::device_profile(device()));
  trace_launches(name(), "metal", planned);
  metal::encode(planned, inputs, outputs, stream());
}

Arrays Op::vjp(
    const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums, const Arrays& outputs
) {
  if (!shapes_may_change()) {
    return make_vjp(primals, cotangents, argnums, outputs);
  }
  const auto first_output = static_cast<int64_t>(primals.size() + cotangents.size());
  auto all = joined(primals, cotangents);
  if (vjp_reads_outputs()) {
    all = joined(all, outputs);
  }
  auto build = [self = itself(), argnums, first_output, count = static_cast<int64_t>(primals.size())](const Arrays& x) {
    const auto begin = x.begin();
    return self->make_vjp(
        {begin, begin + count}, {begin + count, begin + first_output}, argnums, {begin + first_output, x.end()}
    );
  };
  return when_shapes_are_known(all, build, stream());
}

Arrays Op::jvp(const Arrays& primals, const Arrays& tangents, const std::vector<int>& argnums) {
  auto build = [self = itself(), argnums, count = static_cast<int64_t>(primals.size())](const Arrays& x) {
    return self->make_jvp({x.begin(), x.begin() + count}, {x.begin() + count, x.end()}, argnums);
  };
  return when_shapes_are_known(joined(primals, tangents), build, stream());
}

std::pair<Arrays, std::vector<int>> Op::vmap(const Arrays& inputs, const std::vector<int>& axes) {
  if (!shapes_may_change()) {
    return make_vmap(inputs, axes);
  }
  const auto mapped_axes = make_vmap(inputs, axes).second;
  auto build = [self = itself(), axes](const Arrays& x) { return self->make_vmap(x, axes).first; };
  return {when_shapes_are_known(inputs, build, stream()), mapped_axes};
}

Arrays Op::make_vjp(
    const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums, const Arrays& outputs
) {
  return Primitive::vjp(primals, cotangents, argnums, outputs);
}

Arrays Op::make_jvp(const Arrays& primals, const Arrays& tangents, const std::vector<int>& argnums) {
  return Primitive::jvp(primals, tangents, argnums);
}

std::pair<Arrays, std::vector<int>> Op::make_vmap(const Arrays& inputs, const std::vector<int>& axes) {
  return Primitive::vmap(inputs, axes);
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
