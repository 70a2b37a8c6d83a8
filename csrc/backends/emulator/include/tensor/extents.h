#pragma once

#include "../msl/vector.h"

namespace metal {

constexpr size_t dynamic_extent = static_cast<size_t>(-1);

// Sizes of a tensor's dimensions, fastest first; those given as dynamic_extent are values.
template <typename Index, size_t... E>
struct extents {
  using index_type = Index;
  static constexpr size_t static_extents[] = {E...};
  static constexpr size_t dynamic_count = (0 + ... + (E == dynamic_extent ? 1 : 0));

  static constexpr size_t rank() {
    return sizeof...(E);
  }
  static constexpr size_t static_extent(size_t i) {
    return static_extents[i];
  }

  constexpr extents() {
    size_t i = 0;
    ((values[i++] = E == dynamic_extent ? Index(0) : static_cast<Index>(E)), ...);
  }

  // One size for each dimension, or for each dynamic one.
  template <typename... S>
    requires(sizeof...(S) > 0 && (sizeof...(S) == sizeof...(E) || sizeof...(S) == dynamic_count))
  constexpr extents(S... sizes) : extents() {
    const Index given[] = {static_cast<Index>(sizes)...};
    size_t next = 0;
    for (size_t i = 0; i < rank(); ++i) {
      if constexpr (sizeof...(S) == sizeof...(E)) {
        values[i] = given[i];
      } else if (static_extents[i] == dynamic_extent) {
        values[i] = given[next++];
      }
    }
  }

  constexpr Index extent(size_t i) const {
    return values[i];
  }

  Index values[sizeof...(E)];
};

namespace detail {
template <typename Index, typename S>
struct dynamic_extents;
template <typename Index, size_t... I>
struct dynamic_extents<Index, index_sequence<I...>> {
  using type = extents<Index, (static_cast<void>(I), dynamic_extent)...>;
};
} // namespace detail

template <typename Index, size_t Rank>
using dextents = typename detail::dynamic_extents<Index, make_index_sequence<Rank>>::type;

} // namespace metal
