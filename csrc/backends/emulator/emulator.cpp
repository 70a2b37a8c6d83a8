#include "backends/emulator/emulator.h"

#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include "backends/emulator/execute.h"
#include "backends/emulator/library.h"
#include "launch/decimal.h"

namespace tessl::emulator {

namespace {

constexpr size_t alignment = 256; // of scratch, as Metal gives it

int msl_version(Capability capability) {
  switch (capability) {
    case Capability::portable:
      return 310;
    case Capability::tensorops:
      return 400;
    case Capability::tensorops27:
      return 410;
  }
  throw std::invalid_argument("[emulator] unknown capability");
}

struct AlignedBlock {
  explicit AlignedBlock(size_t nbytes) : storage(new char[nbytes + alignment]), nbytes(nbytes) {
  }
  char* data() const {
    const auto start = reinterpret_cast<uintptr_t>(storage.get());
    return storage.get() + (alignment - start % alignment) % alignment;
  }

  std::unique_ptr<char[]> storage;
  size_t nbytes;
};

emu::ConstantType type_of(FunctionConstant::Type type) {
  switch (type) {
    case FunctionConstant::Type::boolean:
      return emu::ConstantType::boolean;
    case FunctionConstant::Type::int32:
      return emu::ConstantType::int32;
    case FunctionConstant::Type::float32:
      return emu::ConstantType::float32;
  }
  throw std::invalid_argument("[emulator] unknown type of function constant");
}

class PlanBinder {
 public:
  PlanBinder(const Plan& plan, std::span<const Buffer> inputs, std::span<const Buffer> outputs)
      : inputs_(inputs), outputs_(outputs) {
    for (const Scratch& scratch : plan.scratch) {
      scratch_.emplace_back(scratch.nbytes);
    }
  }

  Dispatch bind(const Launch& launch, bool checked) {
    Dispatch dispatch;
    dispatch.library =
        &load_kernel(launch.kernel->family, launch.kernel->name, msl_version(launch.kernel->capability), checked);
    dispatch.kernel = dispatch.library->kernel(launch.kernel->name);
    for (const FunctionConstant& constant : launch.constants) {
      dispatch.constants.push_back({constant.index, type_of(constant.type), constant.bits});
    }
    // Constant data of its own, so that its bounds are those of the launch.
    AlignedBlock& bytes = bytes_.emplace_back(Launch::max_bytes);
    std::memcpy(bytes.data(), launch.bytes.data(), launch.bytes_used);
    for (const Argument& argument : launch.arguments) {
      dispatch.bindings.push_back(bind(argument, bytes));
    }
    if (launch.threadgroup_memory > 0) {
      dispatch.threadgroup_memory.push_back(launch.threadgroup_memory);
    }
    dispatch.grid = launch.grid;
    dispatch.group = launch.group;
    return dispatch;
  }

 private:
  Binding bind(const Argument& argument, const AlignedBlock& bytes) const {
    const size_t i = argument.index;
    const std::string number = decimal(i);
    switch (argument.role) {
      case Argument::Role::unused:
        return {};
      case Argument::Role::input:
        return part(Binding::Role::input, inputs_[i], argument, "input " + number);
      case Argument::Role::output:
        return part(Binding::Role::output, outputs_[i], argument, "output " + number);
      case Argument::Role::scratch_in:
      case Argument::Role::scratch_out: {
        const auto role = argument.role == Argument::Role::scratch_in ? Binding::Role::input : Binding::Role::output;
        Binding binding = part(role, {scratch_[i].data(), scratch_[i].nbytes, 0}, argument, "scratch " + number);
        binding.scratch = true;
        return binding;
      }
      case Argument::Role::bytes:
        return {Binding::Role::bytes, bytes.data() + argument.offset, argument.size, 0, false, "constant data"};
    }
    throw std::invalid_argument("[emulator] unknown role of an argument");
  }

  static Binding part(Binding::Role role, const Buffer& buffer, const Argument& argument, std::string name) {
    const int64_t offset = argument.offset;
    if (offset < -static_cast<int64_t>(buffer.before) || offset > static_cast<int64_t>(buffer.nbytes)) {
      throw std::runtime_error(
          "[emulator] " + name + " is bound at byte " + decimal(offset) + " of " + decimal(buffer.nbytes)
      );
    }
    return {
        role,
        static_cast<char*>(buffer.data) + offset,
        static_cast<size_t>(static_cast<int64_t>(buffer.nbytes) - offset),
        static_cast<size_t>(static_cast<int64_t>(buffer.before) + offset),
        false,
        std::move(name)
    };
  }

  std::span<const Buffer> inputs_;
  std::span<const Buffer> outputs_;
  std::vector<AlignedBlock> scratch_;
  std::vector<AlignedBlock> bytes_;
};

} // namespace

void run(
    const Plan& plan, std::span<const Buffer> inputs, std::span<const Buffer> outputs, const Emulation& emulation
) {
  PlanBinder binder(plan, inputs, outputs);
  std::vector<Dispatch> dispatches;
  for (const Launch& launch : plan.launches) {
    dispatches.push_back(binder.bind(launch, emulation.check));
  }
  execute(dispatches, {emulation.order, emulation.seed, emulation.ulp_noise}, emulation.check);
}

} // namespace tessl::emulator
