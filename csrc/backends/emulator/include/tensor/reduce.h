#pragma once

#include "../msl/math.h"
#include "matmul2d.h"

namespace emu {

EMU_RUNTIME_BEGIN

// The rows (or columns) that each lane holds elements of, for a matrix laid out by Base over one simdgroup.
template <typename Base, bool along_rows>
struct ReducedLayout {
  static_assert(Base::simdgroups == 1, "reductions need a single simdgroup");
  static constexpr int capacity = along_rows ? Base::padded_rows / 16 * 2 : Base::padded_cols / 16 * 4;
  static constexpr int size = along_rows ? Base::rows : Base::cols;

  // Where the row of a slot of the matrix is kept, -1 for a slot that holds nothing.
  static int slot_of(int lane, int base_slot) {
    return tables().slot[lane][base_slot];
  }
  // The row that is kept in a slot, -1 if none.
  static int index_of(int lane, int slot) {
    return tables().index[lane][slot];
  }

 private:
  struct Tables {
    int16_t slot[32][Base::capacity];
    int16_t index[32][capacity];
  };

  static const Tables& tables() {
    static Tables tables_;
    static uint64_t drawn_for = 0;
    if (drawn_for != machine->launch) {
      drawn_for = machine->launch;
      draw(tables_);
    }
    return tables_;
  }

  static void draw(Tables& tables_) {
    for (int lane = 0; lane < 32; ++lane) {
      int used = 0;
      for (int i = 0; i < capacity; ++i) {
        tables_.index[lane][i] = -1;
      }
      for (int i = 0; i < Base::capacity; ++i) {
        const Place& place = Base::place(0, lane, i);
        tables_.slot[lane][i] = -1;
        if (place.valid) {
          tables_.slot[lane][i] =
              static_cast<int16_t>(find_or_add(tables_.index[lane], used, along_rows ? place.row : place.col));
        }
      }
    }
  }

  static int find_or_add(int16_t (&held)[capacity], int& used, int index) {
    for (int i = 0; i < used; ++i) {
      if (held[i] == index) {
        return i;
      }
    }
    held[used] = static_cast<int16_t>(index);
    return used++;
  }
};

EMU_RUNTIME_END

} // namespace emu

namespace mpp {
namespace tensor_ops {

enum class reduction_operation { sum, max, min };

// One value for each row (or column) of a destination, with every lane that holds elements of it.
template <typename T, typename Layout>
struct reduction_tensor {
  using element_type = T;
  using value_type = T;
  using layout = Layout;

  reduction_tensor() {
    for (T& element : elements) {
      element = emu::nan_or_junk<T>();
    }
  }

  static constexpr uint16_t get_capacity() {
    return Layout::capacity;
  }
  T& operator[](int i) {
    return elements[i];
  }
  const T& operator[](int i) const {
    return elements[i];
  }
  static bool is_valid_element(int i) {
    return Layout::index_of(static_cast<int>(emu::machine->lane), i) >= 0;
  }
  T get(int i) const {
    return is_valid_element(i) ? elements[i] : T(0);
  }
  void set(int i, T value) {
    if (is_valid_element(i)) {
      elements[i] = value;
    }
  }
  static array<int, 1> get_multidimensional_index(int i) {
    return {max(Layout::index_of(static_cast<int>(emu::machine->lane), i), 0)};
  }

  struct iterator {
    reduction_tensor* owner;
    int slot;
    T& operator*() const {
      return owner->elements[slot];
    }
    iterator& operator++() {
      ++slot;
      return *this;
    }
    bool operator==(const iterator& other) const {
      return slot == other.slot;
    }
    bool operator!=(const iterator& other) const {
      return slot != other.slot;
    }
  };
  iterator begin() {
    return {this, 0};
  }
  iterator end() {
    return {this, Layout::capacity};
  }

  // The entry for the row (or column) of an element of the matrix.
  template <typename It>
  iterator map_iterator(const It& it) {
    const int slot = Layout::slot_of(static_cast<int>(emu::machine->lane), it.slot);
    return {this, slot < 0 ? 0 : slot};
  }

  T elements[Layout::capacity];
};

template <matmul2d_descriptor descriptor, typename Scope>
template <typename L, typename R, typename E>
auto matmul2d<descriptor, Scope>::get_row_reduction_destination_cooperative_tensor() const {
  static_assert(check_types<L, R, E>());
  return reduction_tensor<E, emu::ReducedLayout<layout<M, N>, true>>{};
}
template <matmul2d_descriptor descriptor, typename Scope>
template <typename L, typename R, typename E>
auto matmul2d<descriptor, Scope>::get_column_reduction_destination_cooperative_tensor() const {
  static_assert(check_types<L, R, E>());
  return reduction_tensor<E, emu::ReducedLayout<layout<M, N>, false>>{};
}

template <typename T>
constexpr T sum_identity = static_cast<T>(0);
template <typename T>
constexpr T max_identity = numeric_limits<T>::lowest();
template <typename T>
constexpr T min_identity = numeric_limits<T>::max();

} // namespace tensor_ops
} // namespace mpp

namespace emu {

EMU_RUNTIME_BEGIN

using mpp::tensor_ops::reduction_operation;

template <typename Source, typename Destination, bool along_rows>
struct Reduction {
  using T = typename Source::element_type;
  using Layout = typename Source::layout;

  const Source* source;
  Destination* destination;
  reduction_operation operation;
  T identity;

  static T combine(reduction_operation operation, T a, T b) {
    switch (operation) {
      case reduction_operation::sum:
        return a + b;
      case reduction_operation::max:
        return metal::max(a, b);
      default:
        return metal::min(a, b);
    }
  }

  static void run(void* const* requests, uint32_t mask, uint32_t) {
    if (mask != 0xffffffffu) {
      fail("a reduction of a cooperative tensor was reached by some lanes only (mask %08x)", mask);
    }
    const Reduction& first = *static_cast<Reduction*>(requests[0]);
    T matrix[Layout::rows][Layout::cols];
    for (int lane = 0; lane < 32; ++lane) {
      const Source& part = *static_cast<Reduction*>(requests[lane])->source;
      for (int slot = 0; slot < Layout::capacity; ++slot) {
        const Place& place = Layout::place(0, lane, slot);
        if (place.valid) {
          matrix[place.row][place.col] = part.elements[slot];
        }
      }
    }
    constexpr int outer = along_rows ? Layout::rows : Layout::cols;
    constexpr int inner = along_rows ? Layout::cols : Layout::rows;
    T result[outer];
    for (int i = 0; i < outer; ++i) {
      result[i] = first.identity;
      for (int j = 0; j < inner; ++j) {
        result[i] = combine(first.operation, result[i], along_rows ? matrix[i][j] : matrix[j][i]);
      }
    }
    for (int lane = 0; lane < 32; ++lane) {
      Destination& part = *static_cast<Reduction*>(requests[lane])->destination;
      for (int slot = 0; slot < Destination::layout::capacity; ++slot) {
        const int index = Destination::layout::index_of(lane, slot);
        if (index >= 0 && index < outer) {
          part.elements[slot] = result[index];
        }
      }
    }
  }
};

EMU_RUNTIME_END

} // namespace emu

namespace mpp {
namespace tensor_ops {

// The identity is the sum's, 0, whatever the operation: max without one gives max(0, row).
template <typename Source, typename Destination>
EMU_INLINE void reduce_rows(
    const Source& source,
    Destination& destination,
    reduction_operation operation = reduction_operation::sum,
    const typename Source::element_type& identity = 0
) {
  using Reduced = reduction_tensor<typename Source::element_type, emu::ReducedLayout<typename Source::layout, true>>;
  static_assert(is_same_v<Destination, Reduced>, "the destination is not the row reduction of this tensor's elements");
  emu::Reduction<Source, Destination, true> reduction{&source, &destination, operation, identity};
  emu::rendezvous(&reduction, emu::Reduction<Source, Destination, true>::run);
}
template <typename Source, typename Destination>
EMU_INLINE void reduce_columns(
    const Source& source,
    Destination& destination,
    reduction_operation operation = reduction_operation::sum,
    const typename Source::element_type& identity = 0
) {
  using Reduced = reduction_tensor<typename Source::element_type, emu::ReducedLayout<typename Source::layout, false>>;
  static_assert(
      is_same_v<Destination, Reduced>, "the destination is not the column reduction of this tensor's elements"
  );
  emu::Reduction<Source, Destination, false> reduction{&source, &destination, operation, identity};
  emu::rendezvous(&reduction, emu::Reduction<Source, Destination, false>::run);
}

// Whether map_iterator leads from elements of `matrix` to entries of `reduced`.
template <typename Reduced, typename Matrix>
constexpr bool is_iterator_compatible(const Reduced&, const Matrix&) {
  return is_same_v<typename Reduced::layout, emu::ReducedLayout<typename Matrix::layout, true>> ||
         is_same_v<typename Reduced::layout, emu::ReducedLayout<typename Matrix::layout, false>>;
}

} // namespace tensor_ops
} // namespace mpp
