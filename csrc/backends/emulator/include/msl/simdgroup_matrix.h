#pragma once

#include "../runtime/machine.h"
#include "vector.h"

namespace emu {

EMU_RUNTIME_BEGIN

struct MatrixPlace {
  int row;
  int col;
};

// A lane holds two neighbours of one row: columns col and col + 1.
constexpr MatrixPlace matrix_place(uint32_t lane) {
  const int quad = static_cast<int>(lane) / 4;
  return {(quad & 4) + (static_cast<int>(lane) / 2) % 4, (quad & 2) * 2 + (static_cast<int>(lane) % 2) * 2};
}

template <typename D, typename A, typename B, typename C>
struct MatrixProduct {
  metal::vec<D, 2> d;
  metal::vec<A, 2> a;
  metal::vec<B, 2> b;
  metal::vec<C, 2> c;
};

// D = A B + C in float, a chain of k, rounded once to D.
template <typename D, typename A, typename B, typename C>
void matrix_product_operation(void* const* requests, uint32_t mask, uint32_t) {
  using Product = MatrixProduct<D, A, B, C>;
  if (mask != 0xffffffffu) {
    fail("a simdgroup_matrix product was reached by some lanes only (mask %08x)", mask);
  }
  float a[8][8], b[8][8], d[8][8];
  for (uint32_t lane = 0; lane < 32; ++lane) {
    const Product& product = *static_cast<Product*>(requests[lane]);
    const auto [row, col] = matrix_place(lane);
    for (int i = 0; i < 2; ++i) {
      a[row][col + i] = static_cast<float>(product.a.v[i]);
      b[row][col + i] = static_cast<float>(product.b.v[i]);
      d[row][col + i] = static_cast<float>(product.c.v[i]);
    }
  }
  for (int row = 0; row < 8; ++row) {
    for (int k = 0; k < 8; ++k) {
      for (int col = 0; col < 8; ++col) {
        d[row][col] = __builtin_fmaf(a[row][k], b[k][col], d[row][col]);
      }
    }
  }
  for (uint32_t lane = 0; lane < 32; ++lane) {
    Product& product = *static_cast<Product*>(requests[lane]);
    const auto [row, col] = matrix_place(lane);
    for (int i = 0; i < 2; ++i) {
      product.d.v[i] = static_cast<D>(d[row][col + i]);
    }
  }
  machine->counters.matrix_flops += 2 * 8 * 8 * 8;
}

EMU_RUNTIME_END

} // namespace emu

namespace metal {

template <typename T, int Cols = 8, int Rows = 8>
struct simdgroup_matrix {
  static_assert(Cols == 8 && Rows == 8, "simdgroup_matrix is 8x8");
  static_assert(is_floating_point_v<T>, "simdgroup_matrix of half, bfloat or float");

  // Not initialised on a GPU; NaN here.
  simdgroup_matrix() : elements(static_cast<T>(__builtin_nanf(""))) {
  }
  // The matrix with `diagonal` on its diagonal.
  explicit simdgroup_matrix(T diagonal) {
    const auto [row, col] = emu::matrix_place(emu::machine->lane);
    elements.v[0] = row == col ? diagonal : static_cast<T>(0);
    elements.v[1] = row == col + 1 ? diagonal : static_cast<T>(0);
  }

  vec<T, 2>& thread_elements() {
    return elements;
  }
  const vec<T, 2>& thread_elements() const {
    return elements;
  }

  vec<T, 2> elements;
};

using simdgroup_float8x8 = simdgroup_matrix<float, 8, 8>;
using simdgroup_half8x8 = simdgroup_matrix<half, 8, 8>;
using simdgroup_bfloat8x8 = simdgroup_matrix<bfloat, 8, 8>;

template <typename T, int Cols = 8, int Rows = 8>
simdgroup_matrix<T, Cols, Rows> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, Cols, Rows> matrix;
  matrix.elements = vec<T, 2>(value);
  return matrix;
}

template <typename D, typename A, typename B, typename C>
EMU_INLINE void simdgroup_multiply_accumulate(
    simdgroup_matrix<D>& d, const simdgroup_matrix<A>& a, const simdgroup_matrix<B>& b, const simdgroup_matrix<C>& c
) {
  emu::MatrixProduct<D, A, B, C> product;
  product.a = a.elements;
  product.b = b.elements;
  product.c = c.elements;
  emu::rendezvous(&product, emu::matrix_product_operation<D, A, B, C>);
  d.elements = product.d;
}

template <typename D, typename A, typename B>
EMU_INLINE void simdgroup_multiply(simdgroup_matrix<D>& d, const simdgroup_matrix<A>& a, const simdgroup_matrix<B>& b) {
  simdgroup_multiply_accumulate(d, a, b, simdgroup_matrix<D>(static_cast<D>(0)));
}

template <typename T>
EMU_INLINE simdgroup_matrix<T> operator*(const simdgroup_matrix<T>& a, const simdgroup_matrix<T>& b) {
  simdgroup_matrix<T> d;
  simdgroup_multiply(d, a, b);
  return d;
}

// Element (row, col) is at origin[(row + y) * elements_per_row + col + x].
template <typename T, typename U>
inline void simdgroup_load(
    simdgroup_matrix<T>& matrix,
    const U* source,
    ulong elements_per_row = 8,
    ulong2 origin = ulong2(0, 0),
    bool transpose = false
) {
  static_assert(is_same_v<T, remove_cv_t<U>>, "simdgroup_load does not convert");
  const auto [row, col] = emu::matrix_place(emu::machine->lane);
  for (int i = 0; i < 2; ++i) {
    const ulong r = transpose ? col + i : row;
    const ulong c = transpose ? row : col + i;
    matrix.elements.v[i] = source[(r + origin.y) * elements_per_row + c + origin.x];
  }
}

template <typename T, typename U>
inline void simdgroup_store(
    const simdgroup_matrix<T>& matrix,
    U* destination,
    ulong elements_per_row = 8,
    ulong2 origin = ulong2(0, 0),
    bool transpose = false
) {
  static_assert(is_same_v<T, U>, "simdgroup_store does not convert");
  const auto [row, col] = emu::matrix_place(emu::machine->lane);
  for (int i = 0; i < 2; ++i) {
    const ulong r = transpose ? col + i : row;
    const ulong c = transpose ? row : col + i;
    destination[(r + origin.y) * elements_per_row + c + origin.x] = matrix.elements.v[i];
  }
}

} // namespace metal
