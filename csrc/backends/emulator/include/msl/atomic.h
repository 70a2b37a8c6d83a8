#pragma once

#include "synchronize.h"
#include "traits.h"

// All threads run on one: plain operations are atomic. They are told to the checker as atomic.

namespace metal {

template <typename T>
struct atomic {
  T value;
};
using atomic_int = atomic<int>;
using atomic_uint = atomic<uint>;
using atomic_ulong = atomic<ulong>;
using atomic_float = atomic<float>;
using atomic_bool = atomic<bool>;

EMU_RUNTIME_BEGIN

namespace detail {
EMU_INLINE void touch(const volatile void* address, size_t bytes, emu::Access access) {
  if (emu::machine->check) {
    emu::machine->access(const_cast<const void*>(address), bytes, access, __builtin_return_address(0));
  }
}
} // namespace detail

template <typename T>
__attribute__((noinline)) T atomic_load_explicit(const volatile atomic<T>* object, memory_order) {
  detail::touch(object, sizeof(T), emu::Access::atomic_load);
  return object->value;
}

template <typename T, typename U>
__attribute__((noinline)) void atomic_store_explicit(volatile atomic<T>* object, U desired, memory_order) {
  detail::touch(object, sizeof(T), emu::Access::atomic_store);
  object->value = static_cast<T>(desired);
}

#define EMU_ATOMIC_UPDATE(name, expression)                                               \
  template <typename T, typename U>                                                       \
  __attribute__((noinline)) T name(volatile atomic<T>* object, U operand, memory_order) { \
    detail::touch(object, sizeof(T), emu::Access::atomic_update);                         \
    const T a = object->value;                                                            \
    const T b = static_cast<T>(operand);                                                  \
    object->value = static_cast<T>(expression);                                           \
    return a;                                                                             \
  }
EMU_ATOMIC_UPDATE(atomic_exchange_explicit, b)
EMU_ATOMIC_UPDATE(atomic_fetch_add_explicit, a + b)
EMU_ATOMIC_UPDATE(atomic_fetch_sub_explicit, a - b)
EMU_ATOMIC_UPDATE(atomic_fetch_and_explicit, a& b)
EMU_ATOMIC_UPDATE(atomic_fetch_or_explicit, a | b)
EMU_ATOMIC_UPDATE(atomic_fetch_xor_explicit, a ^ b)
EMU_ATOMIC_UPDATE(atomic_fetch_min_explicit, b < a ? b : a)
EMU_ATOMIC_UPDATE(atomic_fetch_max_explicit, a < b ? b : a)
#undef EMU_ATOMIC_UPDATE

template <typename T, typename U>
__attribute__((noinline)) bool atomic_compare_exchange_weak_explicit(
    volatile atomic<T>* object, T* expected, U desired, memory_order, memory_order
) {
  detail::touch(object, sizeof(T), emu::Access::atomic_update);
  T current = object->value;
  if (__builtin_memcmp(&current, expected, sizeof(T)) == 0) {
    object->value = static_cast<T>(desired);
    return true;
  }
  *expected = current;
  return false;
}

EMU_RUNTIME_END

} // namespace metal
