#pragma once

#include <array>
#include <cassert>
#include <cstddef>
#include <initializer_list>

namespace tessl {

// A vector with inline storage: plans are built on the hot path and must not allocate.
template <typename T, size_t Capacity>
class FixedVector {
 public:
  FixedVector() = default;
  FixedVector(std::initializer_list<T> items) {
    for (const T& item : items) {
      push_back(item);
    }
  }

  void push_back(const T& item) {
    assert(size_ < Capacity);
    items_[size_++] = item;
  }

  size_t size() const {
    return size_;
  }
  bool empty() const {
    return size_ == 0;
  }
  T& operator[](size_t i) {
    return items_[i];
  }
  const T& operator[](size_t i) const {
    return items_[i];
  }
  T& back() {
    return items_[size_ - 1];
  }
  const T& back() const {
    return items_[size_ - 1];
  }
  T* begin() {
    return items_.data();
  }
  T* end() {
    return items_.data() + size_;
  }
  const T* begin() const {
    return items_.data();
  }
  const T* end() const {
    return items_.data() + size_;
  }
  static constexpr size_t capacity() {
    return Capacity;
  }

 private:
  std::array<T, Capacity> items_{};
  size_t size_ = 0;
};

} // namespace tessl
