#include "backends/emulator/contract.h"

#include <algorithm>
#include <stdexcept>

#include "backends/emulator/library.h"
#include "launch/decimal.h"

namespace tessl::emulator {

namespace {

constexpr uint32_t max_threadgroup_bytes = 32 * 1024;

class Contract {
 public:
  explicit Contract(const Dispatch& dispatch) : dispatch_(dispatch), kernel_(*dispatch.kernel) {
  }

  void check() {
    check_threads();
    check_constants();
    install_constants();
    for (uint32_t i = 0; i < kernel_.argument_count; ++i) {
      check_argument(kernel_.arguments[i]);
    }
    check_extra_bindings();
    check_threadgroup_memory();
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw std::runtime_error("[emulator] " + std::string(kernel_.name) + ": " + what);
  }

  void check_threads() const {
    const Size3& g = dispatch_.group;
    const Size3& n = dispatch_.grid;
    const uint64_t threads = uint64_t{g.x} * g.y * g.z;
    const uint32_t allowed = std::min(kernel_.max_threads, emu::max_threads);
    if (threads == 0 || threads > allowed) {
      refuse(decimal(threads) + " threads in a threadgroup; 1 to " + decimal(allowed) + " are allowed");
    }
    if (n.x == 0 || n.y == 0 || n.z == 0) {
      refuse("a grid of no threadgroups");
    }
    if (uint64_t{n.x} * n.y * n.z > UINT32_MAX) {
      refuse("a grid of more than 2^32 threadgroups");
    }
  }

  static bool same_type(emu::ConstantType declared, emu::ConstantType given) {
    const auto is_32bit_integer = [](emu::ConstantType type) {
      return type == emu::ConstantType::int32 || type == emu::ConstantType::uint32;
    };
    return declared == given || (is_32bit_integer(declared) && is_32bit_integer(given));
  }

  void check_constants() const {
    for (const BoundConstant& given : dispatch_.constants) {
      const emu::ConstantInfo* declared = dispatch_.library->constant(given.index);
      if (declared == nullptr) {
        refuse("sets function constant " + decimal(given.index) + ", which the source does not declare");
      }
      if (!same_type(declared->type, given.type)) {
        refuse(
            "function constant " + decimal(given.index) + " ('" + declared->name +
            "') is set with another type than it has"
        );
      }
    }
    for (uint32_t i = 0; i < kernel_.constant_count; ++i) {
      const int32_t index = kernel_.constants[i];
      const bool is_set =
          std::any_of(dispatch_.constants.begin(), dispatch_.constants.end(), [&](const BoundConstant& c) {
            return c.index == index;
          });
      if (!is_set) {
        refuse(
            "function constant " + decimal(index) + " ('" + dispatch_.library->constant(index)->name + "') is not set"
        );
      }
    }
  }

  // Gates of arguments are asked with the constants in force, outside of any run.
  void install_constants() const {
    *dispatch_.library->info().machine = nullptr;
    emu::ConstantValue* values = dispatch_.library->info().constant_values;
    for (uint32_t i = 0; i < dispatch_.library->info().constant_count; ++i) {
      values[dispatch_.library->info().constants[i].index] = {};
    }
    for (const BoundConstant& constant : dispatch_.constants) {
      values[constant.index] = {true, constant.bits};
    }
  }

  static std::string label(const emu::ArgumentInfo& argument) {
    return "buffer " + decimal(argument.index) + " ('" + argument.name + "')";
  }

  void check_argument(const emu::ArgumentInfo& argument) const {
    const auto index = static_cast<size_t>(argument.index);
    if (argument.kind == emu::ArgumentKind::value || (argument.gate != nullptr && !argument.gate())) {
      return;
    }
    if (argument.kind == emu::ArgumentKind::threadgroup) {
      if (index >= dispatch_.threadgroup_memory.size() || dispatch_.threadgroup_memory[index] == 0) {
        refuse("no threadgroup memory for [[threadgroup(" + decimal(index) + ")]] ('" + argument.name + "')");
      }
      return;
    }
    if (index >= dispatch_.bindings.size() || dispatch_.bindings[index].role == Binding::Role::unused) {
      refuse("nothing is bound to " + label(argument));
    }
    check_binding(argument, dispatch_.bindings[index]);
  }

  void check_binding(const emu::ArgumentInfo& argument, const Binding& binding) const {
    if (binding.role == Binding::Role::output && !argument.writable && argument.kind != emu::ArgumentKind::tensor) {
      refuse(label(argument) + " is an output, but the kernel has it as const");
    }
    if (binding.role == Binding::Role::bytes && argument.writable) {
      refuse(label(argument) + " is constant data, but the kernel may write it");
    }
    const bool is_struct = argument.kind != emu::ArgumentKind::buffer;
    if (is_struct && binding.role == Binding::Role::bytes && binding.nbytes != argument.bytes) {
      refuse(
          label(argument) + " has " + decimal(binding.nbytes) + " bytes; the kernel's type has " +
          decimal(argument.bytes)
      );
    }
    if (is_struct && binding.nbytes < argument.bytes) {
      refuse(
          label(argument) + " has " + decimal(binding.nbytes) + " bytes, fewer than the kernel's type, which has " +
          decimal(argument.bytes)
      );
    }
    if (!is_struct && binding.role == Binding::Role::bytes && argument.bytes > 0 &&
        binding.nbytes % argument.bytes != 0) {
      refuse(
          label(argument) + " has " + decimal(binding.nbytes) + " bytes, not a multiple of its element's " +
          decimal(argument.bytes)
      );
    }
    if (argument.alignment > 1 && reinterpret_cast<uintptr_t>(binding.data) % argument.alignment != 0) {
      refuse(label(argument) + " is not aligned to " + decimal(argument.alignment) + " bytes");
    }
  }

  void check_extra_bindings() const {
    for (size_t i = 0; i < dispatch_.bindings.size(); ++i) {
      const bool declared =
          std::any_of(kernel_.arguments, kernel_.arguments + kernel_.argument_count, [&](const emu::ArgumentInfo& a) {
            const bool is_buffer = a.kind != emu::ArgumentKind::value && a.kind != emu::ArgumentKind::threadgroup;
            return is_buffer && static_cast<size_t>(a.index) == i;
          });
      if (dispatch_.bindings[i].role != Binding::Role::unused && !declared && !is_tensor_storage(i)) {
        refuse("binds buffer " + decimal(i) + ", which the kernel does not declare");
      }
    }
  }

  // The elements of a host-made tensor are in a buffer that no parameter names.
  bool is_tensor_storage(size_t i) const {
    return std::any_of(kernel_.arguments, kernel_.arguments + kernel_.argument_count, [&](const emu::ArgumentInfo& a) {
      return a.kind == emu::ArgumentKind::tensor &&
             static_cast<const emu::TensorArgument*>(dispatch_.bindings[static_cast<size_t>(a.index)].data)->buffer ==
                 i;
    });
  }

  void check_threadgroup_memory() const {
    uint64_t total = 0;
    for (size_t i = 0; i < dispatch_.threadgroup_memory.size(); ++i) {
      const uint32_t bytes = dispatch_.threadgroup_memory[i];
      total += bytes;
      if (bytes % 16 != 0) {
        refuse(decimal(bytes) + " bytes of threadgroup memory; a multiple of 16 is needed");
      }
      const bool declared =
          std::any_of(kernel_.arguments, kernel_.arguments + kernel_.argument_count, [&](const emu::ArgumentInfo& a) {
            return a.kind == emu::ArgumentKind::threadgroup && static_cast<size_t>(a.index) == i;
          });
      if (bytes > 0 && !declared) {
        refuse("sets threadgroup memory " + decimal(i) + ", which the kernel does not declare");
      }
    }
    if (total > max_threadgroup_bytes) {
      refuse(decimal(total) + " bytes of threadgroup memory; " + decimal(max_threadgroup_bytes) + " are allowed");
    }
  }

  const Dispatch& dispatch_;
  const emu::KernelInfo& kernel_;
};

} // namespace

void check_contract(const Dispatch& dispatch) {
  Contract(dispatch).check();
}

} // namespace tessl::emulator
