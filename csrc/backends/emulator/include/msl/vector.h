#pragma once

#include "limits.h"

namespace metal {

template <typename T, int N>
struct vec;

// A view of some components of a vector, in place: it shares the storage of the vector it is a member of.
template <typename T, int N, int... I>
struct swizzle {
  using vector = vec<T, static_cast<int>(sizeof...(I))>;

  swizzle& operator=(const swizzle& other) {
    return *this = static_cast<vector>(other);
  }
  swizzle& operator=(const vector& other) {
    int i = 0;
    ((components[I] = other[i++]), ...);
    return *this;
  }
  operator vector() const {
    return vector(components[I]...);
  }
  T operator[](int i) const {
    return static_cast<vector>(*this)[i];
  }

  T components[N];
};

#define EMU_SWIZZLE2(N, a, i, b, j) swizzle<T, N, i, j> a##b;
#define EMU_SWIZZLE3(N, a, i, b, j, c, k) swizzle<T, N, i, j, k> a##b##c;
#define EMU_SWIZZLE4(N, a, i, b, j, c, k, d, l) swizzle<T, N, i, j, k, l> a##b##c##d;

#define EMU_PAIRS_OF_2(N, a, i, b, j) \
  EMU_SWIZZLE2(N, a, i, a, i)         \
  EMU_SWIZZLE2(N, a, i, b, j) EMU_SWIZZLE2(N, b, j, a, i) EMU_SWIZZLE2(N, b, j, b, j)
#define EMU_CROSS_PAIRS(N, a, i, b, j) EMU_SWIZZLE2(N, a, i, b, j) EMU_SWIZZLE2(N, b, j, a, i)
#define EMU_PAIRS_OF_3(N, a, i, b, j, c, k) \
  EMU_PAIRS_OF_2(N, a, i, b, j)             \
  EMU_CROSS_PAIRS(N, a, i, c, k) EMU_CROSS_PAIRS(N, b, j, c, k) EMU_SWIZZLE2(N, c, k, c, k)
#define EMU_PAIRS_OF_4(N, a, i, b, j, c, k, d, l) \
  EMU_PAIRS_OF_3(N, a, i, b, j, c, k)             \
  EMU_CROSS_PAIRS(N, a, i, d, l)                  \
  EMU_CROSS_PAIRS(N, b, j, d, l) EMU_CROSS_PAIRS(N, c, k, d, l) EMU_SWIZZLE2(N, d, l, d, l)

#define EMU_TRIPLE_PERMUTATIONS(N, a, i, b, j, c, k) \
  EMU_SWIZZLE3(N, a, i, b, j, c, k)                  \
  EMU_SWIZZLE3(N, a, i, c, k, b, j)                  \
  EMU_SWIZZLE3(N, b, j, a, i, c, k)                  \
  EMU_SWIZZLE3(N, b, j, c, k, a, i) EMU_SWIZZLE3(N, c, k, a, i, b, j) EMU_SWIZZLE3(N, c, k, b, j, a, i)

#define EMU_ROTATIONS_AFTER(N, a, i, b, j, c, k, d, l) \
  EMU_SWIZZLE4(N, a, i, b, j, c, k, d, l)              \
  EMU_SWIZZLE4(N, a, i, b, j, d, l, c, k)              \
  EMU_SWIZZLE4(N, a, i, c, k, b, j, d, l)              \
  EMU_SWIZZLE4(N, a, i, c, k, d, l, b, j)              \
  EMU_SWIZZLE4(N, a, i, d, l, b, j, c, k) EMU_SWIZZLE4(N, a, i, d, l, c, k, b, j)

// Every pair; triples and quadruples of distinct components; quadruples of one.
#define EMU_SWIZZLES_OF_4(a, b, c, d)            \
  EMU_PAIRS_OF_4(4, a, 0, b, 1, c, 2, d, 3)      \
  EMU_TRIPLE_PERMUTATIONS(4, a, 0, b, 1, c, 2)   \
  EMU_TRIPLE_PERMUTATIONS(4, a, 0, b, 1, d, 3)   \
  EMU_TRIPLE_PERMUTATIONS(4, a, 0, c, 2, d, 3)   \
  EMU_TRIPLE_PERMUTATIONS(4, b, 1, c, 2, d, 3)   \
  EMU_ROTATIONS_AFTER(4, a, 0, b, 1, c, 2, d, 3) \
  EMU_ROTATIONS_AFTER(4, b, 1, a, 0, c, 2, d, 3) \
  EMU_ROTATIONS_AFTER(4, c, 2, a, 0, b, 1, d, 3) \
  EMU_ROTATIONS_AFTER(4, d, 3, a, 0, b, 1, c, 2) \
  EMU_SWIZZLE4(4, a, 0, a, 0, a, 0, a, 0)        \
  EMU_SWIZZLE4(4, b, 1, b, 1, b, 1, b, 1)        \
  EMU_SWIZZLE4(4, c, 2, c, 2, c, 2, c, 2) EMU_SWIZZLE4(4, d, 3, d, 3, d, 3, d, 3)

template <typename T, int N>
struct vec_storage {
  T v[N];
};

template <typename T>
struct vec_storage<T, 2> {
  union {
    T v[2];
    struct {
      T x, y;
    };
    struct {
      T r, g;
    };
    EMU_PAIRS_OF_2(2, x, 0, y, 1)
    EMU_PAIRS_OF_2(2, r, 0, g, 1)
  };
};

template <typename T>
struct vec_storage<T, 3> {
  union {
    T v[3];
    struct {
      T x, y, z;
    };
    struct {
      T r, g, b;
    };
    EMU_PAIRS_OF_3(3, x, 0, y, 1, z, 2)
    EMU_PAIRS_OF_3(3, r, 0, g, 1, b, 2)
    EMU_TRIPLE_PERMUTATIONS(3, x, 0, y, 1, z, 2)
    EMU_TRIPLE_PERMUTATIONS(3, r, 0, g, 1, b, 2)
  };
};

template <typename T>
struct vec_storage<T, 4> {
  union {
    T v[4];
    struct {
      T x, y, z, w;
    };
    struct {
      T r, g, b, a;
    };
    EMU_SWIZZLES_OF_4(x, y, z, w)
    EMU_SWIZZLES_OF_4(r, g, b, a)
  };
};

// How many components an argument of a vector's constructor brings; 0 for what cannot stand there.
template <typename T>
constexpr int component_count = is_arithmetic_v<T> ? 1 : 0;
template <typename T, int N>
constexpr int component_count<vec<T, N>> = N;
template <typename T, int N, int... I>
constexpr int component_count<swizzle<T, N, I...>> = sizeof...(I);

constexpr int vec_alignment(int bytes_of_component, int n) {
  int components = 1;
  while (components < n) {
    components *= 2;
  }
  return bytes_of_component * components;
}

template <typename T, int N, typename F>
constexpr vec<T, N> make_vec(F f);

template <typename T, int N>
struct alignas(vec_alignment(sizeof(T), N)) vec : vec_storage<T, N> {
  using value_type = T;

  vec() = default;
  vec(const vec&) = default;
  constexpr vec& operator=(const vec& other) {
    for (int i = 0; i < N; ++i) {
      this->v[i] = other.v[i];
    }
    return *this;
  }

  template <typename S>
    requires(is_arithmetic_v<S>)
  constexpr vec(S scalar) {
    for (int i = 0; i < N; ++i) {
      this->v[i] = static_cast<T>(scalar);
    }
  }

  template <typename U>
    requires(!is_same_v<U, T>)
  explicit constexpr vec(const vec<U, N>& other) {
    for (int i = 0; i < N; ++i) {
      this->v[i] = static_cast<T>(other.v[i]);
    }
  }

  template <typename... Parts>
    requires(sizeof...(Parts) > 1 && (0 + ... + component_count<Parts>) == N)
  constexpr vec(Parts... parts) {
    int next = 0;
    (append(next, parts), ...);
  }

  constexpr T& operator[](int i) {
    return this->v[i];
  }
  constexpr const T& operator[](int i) const {
    return this->v[i];
  }

  // Not templates, so that a kernel's own operator*(const Tile&, float) for any type Tile is no rival: on a GPU, where
  // vectors are no classes, such operators are not even asked.
#define EMU_SCALAR_OPERATOR(op)                                \
  friend constexpr vec operator op(const vec& a, T b) {        \
    return make_vec<T, N>([&](int i) { return a.v[i] op b; }); \
  }                                                            \
  friend constexpr vec operator op(T a, const vec& b) {        \
    return make_vec<T, N>([&](int i) { return a op b.v[i]; }); \
  }
  EMU_SCALAR_OPERATOR(+)
  EMU_SCALAR_OPERATOR(-)
  EMU_SCALAR_OPERATOR(*)
  EMU_SCALAR_OPERATOR(/)
#undef EMU_SCALAR_OPERATOR

 private:
  template <typename Part>
  constexpr void append(int& next, const Part& part) {
    if constexpr (is_arithmetic_v<Part>) {
      this->v[next++] = static_cast<T>(part);
    } else {
      for (int i = 0; i < component_count<Part>; ++i) {
        this->v[next++] = static_cast<T>(part[i]);
      }
    }
  }
};

// Builds a vector from f(0), f(1), ...
template <typename T, int N, typename F>
constexpr vec<T, N> make_vec(F f) {
  vec<T, N> result;
  for (int i = 0; i < N; ++i) {
    result.v[i] = static_cast<T>(f(i));
  }
  return result;
}

#define EMU_VECTOR_OPERATOR(op)                                                            \
  template <typename T, int N>                                                             \
  constexpr vec<T, N> operator op(const vec<T, N>& a, const vec<T, N>& b) {                \
    return make_vec<T, N>([&](int i) { return a.v[i] op b.v[i]; });                        \
  }                                                                                        \
  template <typename T, int N, typename S>                                                 \
    requires(is_arithmetic_v<S>)                                                           \
  constexpr vec<T, N> operator op(const vec<T, N>& a, S b) {                               \
    return make_vec<T, N>([&](int i) { return a.v[i] op static_cast<T>(b); });             \
  }                                                                                        \
  template <typename T, int N, typename S>                                                 \
    requires(is_arithmetic_v<S>)                                                           \
  constexpr vec<T, N> operator op(S a, const vec<T, N>& b) {                               \
    return make_vec<T, N>([&](int i) { return static_cast<T>(a) op b.v[i]; });             \
  }                                                                                        \
  template <typename T, int N, int... I>                                                   \
  constexpr auto operator op(const swizzle<T, N, I...>& a, const swizzle<T, N, I...>& b) { \
    using V = typename swizzle<T, N, I...>::vector;                                        \
    return static_cast<V>(a) op static_cast<V>(b);                                         \
  }                                                                                        \
  template <typename T, int N, int... I, typename B>                                       \
    requires(is_arithmetic_v<B> || is_same_v<B, vec<T, static_cast<int>(sizeof...(I))>>)   \
  constexpr auto operator op(const swizzle<T, N, I...>& a, const B& b) {                   \
    return static_cast<typename swizzle<T, N, I...>::vector>(a) op b;                      \
  }                                                                                        \
  template <typename T, int N, int... I, typename A>                                       \
    requires(is_arithmetic_v<A> || is_same_v<A, vec<T, static_cast<int>(sizeof...(I))>>)   \
  constexpr auto operator op(const A& a, const swizzle<T, N, I...>& b) {                   \
    return a op static_cast<typename swizzle<T, N, I...>::vector>(b);                      \
  }                                                                                        \
  template <typename T, int N, typename B>                                                 \
  constexpr vec<T, N>& operator op## = (vec<T, N> & a, const B& b) {                       \
    return a = a op b;                                                                     \
  }                                                                                        \
  template <typename T, int N, int... I, typename B>                                       \
  constexpr swizzle<T, N, I...>& operator op## = (swizzle<T, N, I...> & a, const B& b) {   \
    return a = a op static_cast<typename swizzle<T, N, I...>::vector>(b);                  \
  }
EMU_VECTOR_OPERATOR(+)
EMU_VECTOR_OPERATOR(-)
EMU_VECTOR_OPERATOR(*)
EMU_VECTOR_OPERATOR(/)
EMU_VECTOR_OPERATOR(%)
EMU_VECTOR_OPERATOR(&)
EMU_VECTOR_OPERATOR(|)
EMU_VECTOR_OPERATOR(^)
EMU_VECTOR_OPERATOR(<<)
EMU_VECTOR_OPERATOR(>>)
#undef EMU_VECTOR_OPERATOR

#define EMU_VECTOR_PREDICATE(op)                                               \
  template <typename T, int N>                                                 \
  constexpr vec<bool, N> operator op(const vec<T, N>& a, const vec<T, N>& b) { \
    return make_vec<bool, N>([&](int i) { return a.v[i] op b.v[i]; });         \
  }                                                                            \
  template <typename T, int N, typename S>                                     \
    requires(is_arithmetic_v<S>)                                               \
  constexpr vec<bool, N> operator op(const vec<T, N>& a, S b) {                \
    return a op vec<T, N>(b);                                                  \
  }                                                                            \
  template <typename T, int N, typename S>                                     \
    requires(is_arithmetic_v<S>)                                               \
  constexpr vec<bool, N> operator op(S a, const vec<T, N>& b) {                \
    return vec<T, N>(a) op b;                                                  \
  }
EMU_VECTOR_PREDICATE(<)
EMU_VECTOR_PREDICATE(>)
EMU_VECTOR_PREDICATE(<=)
EMU_VECTOR_PREDICATE(>=)
EMU_VECTOR_PREDICATE(==)
EMU_VECTOR_PREDICATE(!=)
EMU_VECTOR_PREDICATE(&&)
EMU_VECTOR_PREDICATE(||)
#undef EMU_VECTOR_PREDICATE

template <typename T, int N>
constexpr vec<T, N> operator-(const vec<T, N>& a) {
  return make_vec<T, N>([&](int i) { return -a.v[i]; });
}
template <typename T, int N>
constexpr vec<T, N> operator+(const vec<T, N>& a) {
  return a;
}
template <typename T, int N>
constexpr vec<T, N> operator~(const vec<T, N>& a) {
  return make_vec<T, N>([&](int i) { return ~a.v[i]; });
}
template <typename T, int N>
constexpr vec<bool, N> operator!(const vec<T, N>& a) {
  return make_vec<bool, N>([&](int i) { return !a.v[i]; });
}

template <int N>
constexpr bool any(const vec<bool, N>& a) {
  bool result = false;
  for (int i = 0; i < N; ++i) {
    result |= a.v[i];
  }
  return result;
}
template <int N>
constexpr bool all(const vec<bool, N>& a) {
  bool result = true;
  for (int i = 0; i < N; ++i) {
    result &= a.v[i];
  }
  return result;
}
constexpr bool any(bool a) {
  return a;
}
constexpr bool all(bool a) {
  return a;
}

// The same components without the alignment.
template <typename T, int N>
struct packed_vec : vec_storage<T, N> {
  packed_vec() = default;
  packed_vec(const packed_vec&) = default;
  packed_vec(const vec<T, N>& other) {
    *this = other;
  }
  template <int M, int... I>
    requires(sizeof...(I) == N)
  packed_vec(const swizzle<T, M, I...>& other) : packed_vec(static_cast<vec<T, N>>(other)) {
  }
  packed_vec& operator=(const packed_vec& other) {
    return *this = static_cast<vec<T, N>>(other);
  }
  packed_vec& operator=(const vec<T, N>& other) {
    for (int i = 0; i < N; ++i) {
      this->v[i] = other.v[i];
    }
    return *this;
  }
  operator vec<T, N>() const {
    return make_vec<T, N>([&](int i) { return this->v[i]; });
  }
  T& operator[](int i) {
    return this->v[i];
  }
  const T& operator[](int i) const {
    return this->v[i];
  }
};

#define EMU_VECTOR_NAMES(T)               \
  using T##2 = vec<T, 2>;                 \
  using T##3 = vec<T, 3>;                 \
  using T##4 = vec<T, 4>;                 \
  using packed_##T##2 = packed_vec<T, 2>; \
  using packed_##T##3 = packed_vec<T, 3>; \
  using packed_##T##4 = packed_vec<T, 4>;
EMU_VECTOR_NAMES(float)
EMU_VECTOR_NAMES(half)
EMU_VECTOR_NAMES(bfloat)
EMU_VECTOR_NAMES(int)
EMU_VECTOR_NAMES(uint)
EMU_VECTOR_NAMES(short)
EMU_VECTOR_NAMES(ushort)
EMU_VECTOR_NAMES(char)
EMU_VECTOR_NAMES(uchar)
EMU_VECTOR_NAMES(long)
EMU_VECTOR_NAMES(ulong)
#undef EMU_VECTOR_NAMES
using bool2 = vec<bool, 2>;
using bool3 = vec<bool, 3>;
using bool4 = vec<bool, 4>;

template <typename T, size_t N>
struct array {
  T elements[N];

  using value_type = T;
  constexpr T& operator[](size_t i) {
    return elements[i];
  }
  constexpr const T& operator[](size_t i) const {
    return elements[i];
  }
  static constexpr size_t size() {
    return N;
  }
};
template <typename T, typename... Rest>
array(T, Rest...) -> array<T, 1 + sizeof...(Rest)>;

template <typename To, typename From>
constexpr To as_type(From from) {
  static_assert(sizeof(To) == sizeof(From), "as_type needs types of one size");
  To to;
  __builtin_memcpy(static_cast<void*>(&to), static_cast<const void*>(&from), sizeof(To));
  return to;
}

// A value known to be the same in all threads.
template <typename T>
struct uniform {
  T value;
  constexpr uniform(T v) : value(v) {
  }
  constexpr operator T() const {
    return value;
  }
};
template <typename T>
constexpr T make_uniform(T value) {
  return value;
}

} // namespace metal

#define EMU_GLOBAL_NAMES(T) \
  using metal::T##2;        \
  using metal::T##3;        \
  using metal::T##4;
EMU_GLOBAL_NAMES(float)
EMU_GLOBAL_NAMES(half)
EMU_GLOBAL_NAMES(bfloat)
EMU_GLOBAL_NAMES(int)
EMU_GLOBAL_NAMES(uint)
EMU_GLOBAL_NAMES(short)
EMU_GLOBAL_NAMES(ushort)
EMU_GLOBAL_NAMES(char)
EMU_GLOBAL_NAMES(uchar)
EMU_GLOBAL_NAMES(bool)
EMU_GLOBAL_NAMES(long)
EMU_GLOBAL_NAMES(ulong)
#undef EMU_GLOBAL_NAMES
using metal::as_type;
