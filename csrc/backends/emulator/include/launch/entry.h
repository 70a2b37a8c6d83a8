#pragma once

#include "../tensor/tensor.h"
#include "constants.h"

// Calls a kernel with the arguments of the launch and the position of the running thread.

namespace emu {

EMU_RUNTIME_BEGIN

// What an argument without a buffer under these function constants points to.
alignas(64) inline __attribute__((visibility("hidden"))) char unbound[4096];

inline Index3 built_in(BuiltIn which) {
  const Machine& m = *machine;
  const Index3 t = m.thread_in_threadgroup;
  const uint32_t flat = t.x + m.threads_per_threadgroup.x * (t.y + m.threads_per_threadgroup.y * t.z);
  const uint32_t threads = m.threads_per_threadgroup.x * m.threads_per_threadgroup.y * m.threads_per_threadgroup.z;
  const Index3 nominal = m.nominal_threads_per_threadgroup;
  switch (which) {
    case BuiltIn::thread_position_in_grid:
      return {m.threadgroup.x * nominal.x + t.x, m.threadgroup.y * nominal.y + t.y, m.threadgroup.z * nominal.z + t.z};
    case BuiltIn::thread_position_in_threadgroup:
      return t;
    case BuiltIn::threadgroup_position_in_grid:
      return m.threadgroup;
    case BuiltIn::threads_per_grid:
      return m.threads_per_grid;
    case BuiltIn::threadgroups_per_grid:
      return m.threadgroups_per_grid;
    case BuiltIn::threads_per_threadgroup:
      return m.threads_per_threadgroup;
    case BuiltIn::dispatch_threads_per_threadgroup:
      return nominal;
    case BuiltIn::thread_index_in_simdgroup:
      return {m.lane, 0, 0};
    case BuiltIn::simdgroup_index_in_threadgroup:
      return {m.simdgroup, 0, 0};
    case BuiltIn::thread_index_in_threadgroup:
      return {flat, 0, 0};
    case BuiltIn::simdgroups_per_threadgroup:
      return {m.simdgroups, 0, 0};
    case BuiltIn::dispatch_simdgroups_per_threadgroup:
      return {(nominal.x * nominal.y * nominal.z + simd_width - 1) / simd_width, 0, 0};
    case BuiltIn::threads_per_simdgroup:
    case BuiltIn::thread_execution_width:
      return {simd_width, 0, 0};
    case BuiltIn::thread_index_in_quadgroup:
      return {flat & 3, 0, 0};
    case BuiltIn::quadgroup_index_in_threadgroup:
      return {flat >> 2, 0, 0};
    case BuiltIn::quadgroups_per_threadgroup:
      return {(threads + 3) / 4, 0, 0};
  }
  __builtin_unreachable();
}

template <typename T>
T built_in_as(BuiltIn which) {
  const Index3 value = built_in(which);
  const uint32_t components[] = {value.x, value.y, value.z};
  if constexpr (metal::is_integral_v<T>) {
    return static_cast<T>(components[0]);
  } else {
    T result;
    for (int i = 0; i < metal::component_count<T>; ++i) {
      result[i] = static_cast<typename T::value_type>(components[i]);
    }
    return result;
  }
}

template <typename Tensor>
Tensor tensor_argument(const TensorArgument& argument) {
  TensorShape<Tensor::rank> shape;
  for (int i = 0; i < Tensor::rank; ++i) {
    shape.extents[i] = shape.limits[i] = argument.extents[i];
    shape.strides[i] = argument.strides[i];
  }
  char* data = static_cast<char*>(machine->buffers[argument.buffer]) + argument.offset;
  return Tensor(reinterpret_cast<typename Tensor::data_handle_type>(data), shape, {});
}

template <typename P>
P argument_value(const ArgumentInfo& info) {
  using Bare = metal::remove_cvref_t<P>;
  if constexpr (metal::is_pointer_v<Bare> || metal::is_reference_v<P>) {
    void* const* bound = info.kind == ArgumentKind::threadgroup ? machine->threadgroup_arguments : machine->buffers;
    void* data = bound[info.index] ? bound[info.index] : unbound;
    if constexpr (metal::is_reference_v<P>) {
      return *static_cast<metal::remove_reference_t<P>*>(data);
    } else {
      return static_cast<P>(data);
    }
  } else if constexpr (metal::is_tensor_v<Bare>) {
    return tensor_argument<Bare>(*static_cast<const TensorArgument*>(machine->buffers[info.index]));
  } else {
    return built_in_as<Bare>(static_cast<BuiltIn>(info.index));
  }
}

// Arguments::list describes the kernel's parameters.
template <auto kernel, typename Arguments>
struct Entry;

template <typename... P, void (*kernel)(P...), typename Arguments>
struct Entry<kernel, Arguments> {
  static void run() {
    call(metal::make_index_sequence<sizeof...(P)>{});
  }

 private:
  template <size_t... I>
  static void call(metal::index_sequence<I...>) {
    kernel(argument_value<P>(Arguments::list.items[I])...);
  }
};

// Size and alignment of what a parameter of type P points or refers to.
template <typename T>
struct Pointee {
  using type = T;
};
template <typename T>
struct Pointee<T*> {
  using type = T;
};
template <typename T>
struct Pointee<T&> {
  using type = T;
};

// A parameter as the source has it, completed by what only the compiler knows of its type.
template <typename P>
constexpr ArgumentInfo complete(ArgumentInfo info) {
  if constexpr (metal::is_pointer_v<P> || metal::is_reference_v<P>) {
    using T = typename Pointee<P>::type;
    info.writable = !metal::is_const_v<T>;
    if constexpr (!metal::is_void_v<T>) {
      info.bytes = sizeof(T);
      info.alignment = alignof(T);
    }
    if (info.kind == ArgumentKind::buffer && metal::is_reference_v<P>) {
      info.kind = ArgumentKind::reference;
    }
  } else if constexpr (metal::is_tensor_v<metal::remove_cvref_t<P>>) {
    info.kind = ArgumentKind::tensor;
    info.bytes = sizeof(TensorArgument);
    info.alignment = alignof(TensorArgument);
  }
  return info;
}

template <size_t N>
struct ArgumentList {
  ArgumentInfo items[N > 0 ? N : 1];
};

template <typename Signature>
struct Arguments;
template <typename... P>
struct Arguments<void (*)(P...)> {
  template <typename... Info>
  static constexpr ArgumentList<sizeof...(P)> of(Info... info) {
    static_assert(sizeof...(P) == sizeof...(Info));
    return {{complete<P>(info)...}};
  }
};

EMU_RUNTIME_END

} // namespace emu
