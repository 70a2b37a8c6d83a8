#pragma once

#include <cstdint>
#include <memory>
#include <new>

namespace tessl::cpu {

// Memory that a thread keeps between tasks.
class Scratch {
 public:
  float* reserve(int64_t count) {
    if (count > capacity_) {
      data_.reset();
      data_.reset(static_cast<float*>(::operator new(static_cast<size_t>(count) * sizeof(float), cache_line)));
      capacity_ = count;
    }
    return data_.get();
  }

  // The same for elements that are no larger than a float.
  template <typename T>
  T* reserve_as(int64_t count) {
    constexpr int64_t each = sizeof(float) / sizeof(T);
    static_assert(each * sizeof(T) == sizeof(float));
    return reinterpret_cast<T*>(reserve((count + each - 1) / each));
  }

 private:
  static constexpr std::align_val_t cache_line{64};

  struct Free {
    void operator()(float* data) const {
      ::operator delete(data, cache_line);
    }
  };

  std::unique_ptr<float, Free> data_;
  int64_t capacity_ = 0;
};

} // namespace tessl::cpu
