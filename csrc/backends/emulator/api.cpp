#include <algorithm>
#include <cstring>
#include <exception>
#include <mutex>

#include "backends/emulator/execute.h"
#include "backends/emulator/library.h"
#include "backends/emulator/meter.h"
#include "launch/decimal.h"

// What mlx_tessl.emulator calls by ctypes: kernels are launched on any memory, and the meter is read, without MLX.

#define TESSL_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using namespace tessl;
using namespace tessl::emulator;

struct ApiBinding {
  uint32_t role; // Binding::Role
  uint32_t index;
  void* data;
  uint64_t nbytes;
};

struct ApiConstant {
  int32_t index;
  uint32_t type; // emu::ConstantType
  uint64_t bits;
};

struct ApiLaunch {
  const char* library;
  const char* kernel;
  const ApiBinding* bindings;
  uint32_t binding_count;
  const ApiConstant* constants;
  uint32_t constant_count;
  const uint32_t* threadgroup_memory;
  uint32_t threadgroup_memory_count;
  uint32_t grid[3]; // threadgroups
  uint32_t group[3];
  uint32_t threads[3]; // of the whole grid, 0 for grid x group
  uint32_t order;      // Emulation::Order
  uint64_t seed;
  float ulp_noise;
  uint32_t check;
};

struct ApiReading {
  char kernel[192];
  uint32_t grid[3];
  uint32_t group[3];
  uint32_t checked;
  uint32_t reserved;
  emu::Counters counters;
};

const char* role_name(Binding::Role role) {
  switch (role) {
    case Binding::Role::input:
      return "input ";
    case Binding::Role::output:
      return "output ";
    case Binding::Role::bytes:
      return "bytes ";
    default:
      return "buffer ";
  }
}

Dispatch dispatch_of(const ApiLaunch& launch) {
  Dispatch dispatch;
  dispatch.library = &load_library(launch.library);
  dispatch.kernel = dispatch.library->kernel(launch.kernel);
  for (uint32_t i = 0; i < launch.binding_count; ++i) {
    const ApiBinding& given = launch.bindings[i];
    const auto role = static_cast<Binding::Role>(given.role);
    if (dispatch.bindings.size() <= given.index) {
      dispatch.bindings.resize(given.index + 1);
    }
    dispatch.bindings[given.index] = {role, given.data, given.nbytes, 0, false, role_name(role) + decimal(given.index)};
  }
  for (uint32_t i = 0; i < launch.constant_count; ++i) {
    const ApiConstant& given = launch.constants[i];
    dispatch.constants.push_back({given.index, static_cast<emu::ConstantType>(given.type), given.bits});
  }
  dispatch.threadgroup_memory.assign(
      launch.threadgroup_memory, launch.threadgroup_memory + launch.threadgroup_memory_count
  );
  dispatch.grid = {launch.grid[0], launch.grid[1], launch.grid[2]};
  dispatch.group = {launch.group[0], launch.group[1], launch.group[2]};
  dispatch.threads = {launch.threads[0], launch.threads[1], launch.threads[2]};
  return dispatch;
}

void copy_text(const std::string& text, char* to, uint64_t capacity) {
  const size_t n = std::min<size_t>(text.size(), capacity - 1);
  std::memcpy(to, text.data(), n);
  to[n] = '\0';
}

void copy3(const Size3& from, uint32_t (&to)[3]) {
  to[0] = from.x;
  to[1] = from.y;
  to[2] = from.z;
}

} // namespace

// Returns 0, or 1 with what went wrong in `message`.
TESSL_EXPORT int tessl_emulator_launch(const ApiLaunch* launch, char* message, uint64_t capacity) {
  try {
    const auto order = static_cast<Emulation::Order>(launch->order);
    execute({dispatch_of(*launch)}, {order, launch->seed, launch->ulp_noise}, launch->check != 0);
    return 0;
  } catch (const std::exception& error) {
    copy_text(error.what(), message, capacity);
    return 1;
  }
}

// The command that compiles a kernel; see set_compile_command().
TESSL_EXPORT void tessl_emulator_configure(const char* const* command, uint32_t count) {
  set_compile_command({command, command + count});
}

// Takes up to `capacity` readings, oldest first, and returns how many; call it until it returns 0.
TESSL_EXPORT uint32_t tessl_emulator_take_readings(ApiReading* readings, uint32_t capacity) {
  static std::mutex mutex;
  static std::vector<Reading> waiting;
  const std::lock_guard lock(mutex);
  for (Reading& reading : take_readings()) {
    waiting.push_back(std::move(reading));
  }
  const auto count = static_cast<uint32_t>(std::min<size_t>(capacity, waiting.size()));
  for (uint32_t i = 0; i < count; ++i) {
    ApiReading& to = readings[i];
    copy_text(waiting[i].kernel, to.kernel, sizeof(to.kernel));
    copy3(waiting[i].grid, to.grid);
    copy3(waiting[i].group, to.group);
    to.checked = waiting[i].checked;
    to.counters = waiting[i].counters;
  }
  waiting.erase(waiting.begin(), waiting.begin() + count);
  return count;
}
