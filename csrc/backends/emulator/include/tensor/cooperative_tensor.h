#pragma once

#include "layout.h"
#include "tensor.h"

namespace emu {

template <typename T>
constexpr T nan_or_junk() {
  if constexpr (metal::is_floating_point_v<T>) {
    return static_cast<T>(__builtin_nanf(""));
  } else {
    return static_cast<T>(0x7a7a7a7a7a7a7a7aull);
  }
}

} // namespace emu

namespace metal {

// The part of a matrix that one thread of an execution scope holds. Starts as NaN: nothing zeroes it.
// Role says what it is to its operation, so that run() can refuse a tensor made for something else.
template <typename T, typename Layout, typename Role>
struct cooperative_tensor {
  using element_type = T;
  using value_type = T;
  using layout = Layout;
  using role = Role;
  using index_type = int;
  static constexpr int rank = 2;

  cooperative_tensor() {
    for (T& element : elements) {
      element = emu::nan_or_junk<T>();
    }
  }

  static constexpr uint16_t get_capacity() {
    return Layout::capacity;
  }
  static constexpr uint16_t capacity() {
    return Layout::capacity;
  }

  T& operator[](int i) {
    check(i);
    return elements[i];
  }
  const T& operator[](int i) const {
    check(i);
    return elements[i];
  }
  T get(int i) const {
    return is_valid_element(i) ? elements[i] : T(0);
  }
  void set(int i, T value) {
    if (is_valid_element(i)) {
      elements[i] = value;
    }
  }
  static bool is_valid_element(int i) {
    check(i);
    return Layout::own_place(i).valid;
  }

  // [0] is the fast axis, the column.
  static array<int, 2> get_multidimensional_index(int i) {
    check(i);
    const emu::Place place = Layout::own_place(i);
    return {place.col, place.row};
  }

  template <typename U>
  struct basic_iterator {
    U* owner;
    int slot;

    auto& operator*() const {
      return owner->elements[slot];
    }
    auto* operator->() const {
      return &owner->elements[slot];
    }
    basic_iterator& operator++() {
      ++slot;
      return *this;
    }
    basic_iterator operator++(int) {
      return {owner, slot++};
    }
    bool operator==(const basic_iterator& other) const {
      return slot == other.slot;
    }
    bool operator!=(const basic_iterator& other) const {
      return slot != other.slot;
    }
    auto get_multidimensional_index() const {
      return cooperative_tensor::get_multidimensional_index(slot);
    }
  };
  using iterator = basic_iterator<cooperative_tensor>;
  using const_iterator = basic_iterator<const cooperative_tensor>;

  iterator begin() {
    return {this, 0};
  }
  iterator end() {
    return {this, Layout::capacity};
  }
  const_iterator begin() const {
    return {this, 0};
  }
  const_iterator end() const {
    return {this, Layout::capacity};
  }
  template <typename U>
  static bool is_valid_element(const basic_iterator<U>& it) {
    return is_valid_element(it.slot);
  }
  template <typename U>
  static auto get_multidimensional_index(const basic_iterator<U>& it) {
    return get_multidimensional_index(it.slot);
  }

  // Elements outside of the tensor's extents are not read and keep no value that could be relied on.
  template <typename Tensor>
  void load(const Tensor& tensor) {
    check_element_type<Tensor>();
    for (int i = 0; i < Layout::capacity; ++i) {
      const emu::Place place = Layout::own_place(i);
      elements[i] = emu::nan_or_junk<T>();
      if (place.valid && reachable(tensor, place, "load")) {
        elements[i] = tensor.data[tensor.first + offset(tensor, place)];
      }
    }
  }

  template <typename Tensor>
  void store(const Tensor& tensor) const {
    check_element_type<Tensor>();
    for (int i = 0; i < Layout::capacity; ++i) {
      const emu::Place place = Layout::own_place(i);
      if (place.valid && reachable(tensor, place, "store")) {
        tensor.data[tensor.first + offset(tensor, place)] = elements[i];
      }
    }
  }

  T elements[Layout::capacity];

 private:
  static void check(int i) {
    if (i < 0 || i >= Layout::capacity) {
      emu::fail("slot %d of a cooperative tensor of capacity %d", i, Layout::capacity);
    }
  }

  template <typename Tensor>
  static void check_element_type() {
    static_assert(
        is_same_v<typename Tensor::value_type, T>, "load and store do not convert: element types must be identical"
    );
    static_assert(
        Tensor::rank == 2 || Tensor::rank == 1, "a cooperative tensor of rank 2 meets tensors of rank 1 or 2"
    );
  }

  template <typename Tensor>
  static int64_t offset(const Tensor& tensor, const emu::Place& place) {
    const int64_t along = place.col * tensor.shape.strides[0];
    if constexpr (Tensor::rank == 1) {
      return along;
    } else {
      return along + place.row * tensor.shape.strides[1];
    }
  }

  // Inside of the extents; past the parent of a static slice nothing masks, so that is a fault.
  template <typename Tensor>
  static bool reachable(const Tensor& tensor, const emu::Place& place, const char* what) {
    const int64_t index[2] = {place.col, place.row};
    for (int i = 0; i < Tensor::rank; ++i) {
      if (index[i] >= tensor.shape.extents[i]) {
        return false;
      }
    }
    for (int i = 0; i < Tensor::rank; ++i) {
      if (index[i] >= tensor.shape.limits[i]) {
        emu::fail(
            "cooperative %s through a static slice reaches column %d, row %d; its tensor ends at %ld in dimension %d",
            what,
            place.col,
            place.row,
            static_cast<long>(tensor.shape.limits[i]),
            i
        );
      }
    }
    return true;
  }
};

template <typename T>
constexpr bool is_cooperative_tensor_v = false;
template <typename T, typename L, typename R>
constexpr bool is_cooperative_tensor_v<cooperative_tensor<T, L, R>> = true;

} // namespace metal
