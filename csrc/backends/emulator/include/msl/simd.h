#pragma once

#include "../runtime/machine.h"
#include "math.h"

namespace emu {

EMU_RUNTIME_BEGIN

// What one lane passes to a simdgroup operation, and what it gets back.
template <typename T>
struct Exchange {
  T in;
  T out;
  T fill;
  int operand;
};

template <typename T>
EMU_INLINE Exchange<T>& exchange_of(void* const* requests, uint32_t lane) {
  return *static_cast<Exchange<T>*>(requests[lane]);
}

// What reading an absent lane gives: anything. All ones is NaN in every float type.
template <typename T>
EMU_INLINE T undefined_value() {
  T value;
  __builtin_memset(static_cast<void*>(&value), 0xff, sizeof(T));
  return value;
}

constexpr int own_lane(int lane, int) {
  return lane;
}

// Lane `lane` receives from lane source(lane, operand); from an absent lane, Fallback decides.
template <typename T, auto source, bool keeps_own>
void shuffle_operation(void* const* requests, uint32_t mask, uint32_t) {
  for_lanes(mask, [&](uint32_t lane) {
    Exchange<T>& exchange = exchange_of<T>(requests, lane);
    const int from = source(static_cast<int>(lane), exchange.operand);
    if (from >= 0 && from < 32 && (mask >> from & 1)) {
      exchange.out = exchange_of<T>(requests, from).in;
    } else {
      exchange.out = keeps_own ? exchange.in : undefined_value<T>();
    }
  });
}

// The same, where lanes come in from `fill` at either end.
template <typename T, auto source>
void shuffle_fill_operation(void* const* requests, uint32_t mask, uint32_t) {
  for_lanes(mask, [&](uint32_t lane) {
    Exchange<T>& exchange = exchange_of<T>(requests, lane);
    const int from = source(static_cast<int>(lane), exchange.operand);
    const int wrapped = from & 31;
    const bool present = mask >> wrapped & 1;
    const Exchange<T>& other = exchange_of<T>(requests, present ? wrapped : lane);
    exchange.out = !present ? undefined_value<T>() : from == wrapped ? other.in : other.fill;
  });
}

// A butterfly over the lanes of each group of `width`, rounding in T at each step.
template <typename T, auto combine, int width>
void reduce_operation(void* const* requests, uint32_t mask, uint32_t) {
  T partial[32];
  bool present[32];
  for (int i = 0; i < 32; ++i) {
    present[i] = mask >> i & 1;
    if (present[i]) {
      partial[i] = exchange_of<T>(requests, i).in;
    }
  }
  for (int step = 1; step < width; step *= 2) {
    for (int i = 0; i < 32; i += 2 * step) {
      const int j = i + step;
      if (present[i] && present[j]) {
        partial[i] = combine(partial[i], partial[j]);
      } else if (present[j]) {
        partial[i] = partial[j];
        present[i] = true;
      }
    }
  }
  for_lanes(mask, [&](uint32_t lane) { exchange_of<T>(requests, lane).out = partial[lane / width * width]; });
}

template <typename T, auto combine, bool inclusive, int identity>
void scan_operation(void* const* requests, uint32_t mask, uint32_t) {
  T sum = static_cast<T>(identity);
  for_lanes(mask, [&](uint32_t lane) {
    Exchange<T>& exchange = exchange_of<T>(requests, lane);
    const T next = combine(sum, exchange.in);
    exchange.out = inclusive ? next : sum;
    sum = next;
  });
}

// Every lane learns which lanes voted yes, and which are there.
struct Vote {
  bool in;
  uint32_t yes;
  uint32_t present;
};

template <int width>
void vote_operation(void* const* requests, uint32_t mask, uint32_t) {
  uint32_t yes = 0;
  for_lanes(mask, [&](uint32_t lane) { yes |= static_cast<Vote*>(requests[lane])->in ? 1u << lane : 0; });
  for_lanes(mask, [&](uint32_t lane) {
    const uint32_t group = width == 32 ? ~0u : 0xfu << (lane & ~3u);
    Vote& vote = *static_cast<Vote*>(requests[lane]);
    vote.yes = yes & group;
    vote.present = mask & group;
  });
}

template <int width>
EMU_INLINE Vote take_vote(bool in) {
  Vote vote{in, 0, 0};
  rendezvous(&vote, vote_operation<width>);
  return vote;
}

template <typename T>
EMU_INLINE T run_exchange(Operation operation, T in, int operand = 0, T fill = T{}) {
  Exchange<T> exchange;
  exchange.in = in;
  exchange.fill = fill;
  exchange.operand = operand;
  rendezvous(&exchange, operation);
  return exchange.out;
}

EMU_RUNTIME_END

} // namespace emu

namespace metal {

#define EMU_SHUFFLE(name, keeps_own, from)                                                      \
  template <typename T>                                                                         \
  EMU_INLINE T name(T value, ushort operand) {                                                  \
    constexpr auto source = [](int lane, int n) -> int { return from; };                        \
    return emu::run_exchange<T>(emu::shuffle_operation<T, +source, keeps_own>, value, operand); \
  }
EMU_SHUFFLE(simd_shuffle, false, n)
EMU_SHUFFLE(simd_broadcast, false, n)
EMU_SHUFFLE(simd_shuffle_xor, false, lane ^ n)
EMU_SHUFFLE(simd_shuffle_rotate_up, false, (lane - n) & 31)
EMU_SHUFFLE(simd_shuffle_rotate_down, false, (lane + n) & 31)
EMU_SHUFFLE(simd_shuffle_up, true, lane - n)
EMU_SHUFFLE(simd_shuffle_down, true, lane + n)
EMU_SHUFFLE(quad_shuffle, false, (lane & ~3) + (n & 3))
EMU_SHUFFLE(quad_broadcast, false, (lane & ~3) + (n & 3))
EMU_SHUFFLE(quad_shuffle_xor, false, (lane & ~3) + ((lane ^ n) & 3))
EMU_SHUFFLE(quad_shuffle_up, true, (lane & 3) >= n ? lane - n : -1)
EMU_SHUFFLE(quad_shuffle_down, true, (lane & 3) + n < 4 ? lane + n : -1)
EMU_SHUFFLE(quad_shuffle_rotate_up, false, (lane & ~3) + ((lane - n) & 3))
EMU_SHUFFLE(quad_shuffle_rotate_down, false, (lane & ~3) + ((lane + n) & 3))
#undef EMU_SHUFFLE

#define EMU_SHUFFLE_FILL(name, from)                                                            \
  template <typename T>                                                                         \
  EMU_INLINE T name(T value, T fill, ushort operand) {                                          \
    constexpr auto source = [](int lane, int n) -> int { return from; };                        \
    return emu::run_exchange<T>(emu::shuffle_fill_operation<T, +source>, value, operand, fill); \
  }
EMU_SHUFFLE_FILL(simd_shuffle_and_fill_up, lane - n)
EMU_SHUFFLE_FILL(simd_shuffle_and_fill_down, lane + n)
#undef EMU_SHUFFLE_FILL

#define EMU_REDUCE(name, expression)                                                   \
  template <typename T>                                                                \
  EMU_INLINE T simd_##name(T value) {                                                  \
    constexpr auto combine = [](T a, T b) -> T { return static_cast<T>(expression); }; \
    return emu::run_exchange<T>(emu::reduce_operation<T, +combine, 32>, value);        \
  }                                                                                    \
  template <typename T>                                                                \
  EMU_INLINE T quad_##name(T value) {                                                  \
    constexpr auto combine = [](T a, T b) -> T { return static_cast<T>(expression); }; \
    return emu::run_exchange<T>(emu::reduce_operation<T, +combine, 4>, value);         \
  }
EMU_REDUCE(sum, a + b)
EMU_REDUCE(product, a* b)
EMU_REDUCE(max, metal::max(a, b))
EMU_REDUCE(min, metal::min(a, b))
EMU_REDUCE(and, a& b)
EMU_REDUCE(or, a | b)
EMU_REDUCE(xor, a ^ b)
#undef EMU_REDUCE

#define EMU_SCAN(name, expression, identity)                                               \
  template <typename T>                                                                    \
  EMU_INLINE T simd_prefix_inclusive_##name(T value) {                                     \
    constexpr auto combine = [](T a, T b) -> T { return static_cast<T>(expression); };     \
    return emu::run_exchange<T>(emu::scan_operation<T, +combine, true, identity>, value);  \
  }                                                                                        \
  template <typename T>                                                                    \
  EMU_INLINE T simd_prefix_exclusive_##name(T value) {                                     \
    constexpr auto combine = [](T a, T b) -> T { return static_cast<T>(expression); };     \
    return emu::run_exchange<T>(emu::scan_operation<T, +combine, false, identity>, value); \
  }
EMU_SCAN(sum, a + b, 0)
EMU_SCAN(product, a* b, 1)
#undef EMU_SCAN

struct simd_vote {
  using vote_t = ulong;

  explicit constexpr simd_vote(vote_t v = 0) : votes(v) {
  }
  explicit constexpr operator vote_t() const {
    return votes;
  }
  constexpr bool all() const {
    return votes == 0xffffffffu;
  }
  constexpr bool any() const {
    return votes != 0;
  }

  vote_t votes;
};

EMU_INLINE bool simd_any(bool value) {
  return emu::take_vote<32>(value).yes != 0;
}
EMU_INLINE bool simd_all(bool value) {
  const emu::Vote vote = emu::take_vote<32>(value);
  return vote.yes == vote.present;
}
EMU_INLINE simd_vote simd_ballot(bool value) {
  return simd_vote(emu::take_vote<32>(value).yes);
}
EMU_INLINE simd_vote simd_active_threads_mask() {
  return simd_vote(emu::take_vote<32>(true).present);
}
EMU_INLINE bool simd_is_first() {
  const emu::Vote vote = emu::take_vote<32>(true);
  return emu::machine->lane == static_cast<uint>(__builtin_ctz(vote.present));
}
EMU_INLINE bool simd_is_helper_thread() {
  return false;
}
template <typename T>
EMU_INLINE T simd_broadcast_first(T value) {
  const emu::Vote vote = emu::take_vote<32>(true);
  return simd_broadcast(value, static_cast<ushort>(__builtin_ctz(vote.present)));
}
EMU_INLINE bool quad_any(bool value) {
  return emu::take_vote<4>(value).yes != 0;
}
EMU_INLINE bool quad_all(bool value) {
  const emu::Vote vote = emu::take_vote<4>(value);
  return vote.yes == vote.present;
}

} // namespace metal
