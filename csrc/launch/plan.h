#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "launch/fixed_vector.h"
#include "launch/kernel.h"

namespace tessl {

struct Size3 {
  uint32_t x = 1;
  uint32_t y = 1;
  uint32_t z = 1;

  bool operator==(const Size3&) const = default;
};

// The value of one [[function_constant(index)]].
struct FunctionConstant {
  enum class Type : uint8_t { boolean, int32, float32 };

  uint16_t index = 0;
  Type type = Type::boolean;
  uint32_t bits = 0;

  static FunctionConstant boolean(uint16_t index, bool value) {
    return {index, Type::boolean, value};
  }
  static FunctionConstant int32(uint16_t index, int32_t value) {
    return {index, Type::int32, static_cast<uint32_t>(value)};
  }
  static FunctionConstant float32(uint16_t index, float value) {
    FunctionConstant constant{index, Type::float32, 0};
    std::memcpy(&constant.bits, &value, sizeof(value));
    return constant;
  }

  bool operator==(const FunctionConstant&) const = default;
};

// What a kernel's [[buffer(i)]] is bound to; i is the argument's place in Launch::arguments.
struct Argument {
  enum class Role : uint8_t {
    unused,      // the kernel declares no such buffer under these function constants
    input,       // inputs[index] of the primitive
    output,      // outputs[index] of the primitive
    scratch_in,  // scratch[index] of the plan, read
    scratch_out, // scratch[index] of the plan, written
    bytes,       // `size` bytes of Launch::bytes at `offset`: constant data, set_bytes
  };

  Role role = Role::unused;
  uint8_t index = 0;
  uint32_t size = 0;
  int64_t offset = 0; // bytes past the array's own offset, or into Launch::bytes

  static Argument input(uint8_t index, int64_t offset = 0) {
    return {Role::input, index, 0, offset};
  }
  static Argument output(uint8_t index, int64_t offset = 0) {
    return {Role::output, index, 0, offset};
  }
  static Argument scratch_in(uint8_t index, int64_t offset = 0) {
    return {Role::scratch_in, index, 0, offset};
  }
  static Argument scratch_out(uint8_t index, int64_t offset = 0) {
    return {Role::scratch_out, index, 0, offset};
  }
  static Argument unused() {
    return {};
  }
};

// One dispatch: `grid` threadgroups of `group` threads.
struct Launch {
  static constexpr size_t max_bytes = 768;

  const Kernel* kernel = nullptr;
  FixedVector<FunctionConstant, 16> constants;
  FixedVector<Argument, 16> arguments;
  uint32_t threadgroup_memory = 0; // bytes for [[threadgroup(0)]]; 0 when the kernel declares its own
  Size3 grid;
  Size3 group;

  // Constant data of the launch, argument structs above all.
  std::span<const std::byte> bytes_of(const Argument& argument) const {
    return {bytes.data() + argument.offset, argument.size};
  }

  template <typename Args>
  void push_bytes(const Args& args) {
    static_assert(std::is_trivially_copyable_v<Args>);
    static_assert(sizeof(Args) <= max_bytes);
    const auto offset = (bytes_used + 15) & ~size_t{15};
    assert(offset + sizeof(Args) <= max_bytes);
    std::memcpy(bytes.data() + offset, &args, sizeof(Args));
    bytes_used = offset + sizeof(Args);
    arguments.push_back({Argument::Role::bytes, 0, sizeof(Args), static_cast<int64_t>(offset)});
  }

  std::array<std::byte, max_bytes> bytes{};
  size_t bytes_used = 0;
};

// A buffer that lives from the first launch of a plan to its last.
struct Scratch {
  size_t nbytes = 0;
};

// All that evaluating one primitive asks of a device: launches in order, each ordered after the
// ones whose outputs it reads.
struct Plan {
  FixedVector<Scratch, 5> scratch;
  FixedVector<Launch, 6> launches;

  Argument add_scratch(size_t nbytes) {
    scratch.push_back({nbytes});
    return Argument::scratch_out(static_cast<uint8_t>(scratch.size() - 1));
  }
};

} // namespace tessl
