#pragma once

#include <metal_tensor>

#if __METAL_VERSION__ >= 400

namespace mpp::tensor_ops {

template <typename T>
constexpr T dynamic_length_v = T(2147483647);

struct matmul2d_descriptor {
  enum class mode { multiply, multiply_accumulate };

  int m, n, k;
  bool transpose_left, transpose_right, relaxed_precision;
  mode matmul_mode;

  constexpr matmul2d_descriptor(
      int m,
      int n,
      int k = dynamic_length_v<int>,
      bool transpose_left = false,
      bool transpose_right = false,
      bool relaxed_precision = false,
      mode matmul_mode = mode::multiply)
      : m(m),
        n(n),
        k(k),
        transpose_left(transpose_left),
        transpose_right(transpose_right),
        relaxed_precision(relaxed_precision),
        matmul_mode(matmul_mode) {}
};

// Whether a type may stand as an operand: a tensor in device or threadgroup memory whose elements are not const, or
// a cooperative tensor.
template <typename T>
constexpr bool is_operand_v = false;

template <typename Element>
struct cooperative_iterator {
  Element& operator*() const;
  cooperative_iterator& operator++();
  bool operator!=(cooperative_iterator) const;
};

template <typename Element, typename Role>
struct cooperative_tensor {
  using element_type = Element;

  ushort get_capacity() const;
  bool is_valid_element(ushort) const;
  metal::array<int, 2> get_multidimensional_index(ushort) const;
  Element& operator[](ushort);
  const Element& operator[](ushort) const;
  Element get(ushort) const;
  void set(ushort, Element);
  template <typename Tensor>
  void load(Tensor);
  template <typename Tensor>
  void store(Tensor) const;
  cooperative_iterator<Element> begin();
  cooperative_iterator<Element> end();
  template <typename Iterator>
  cooperative_iterator<Element> map_iterator(Iterator);
};

template <typename Element, typename Extents, typename... Rest>
constexpr bool is_operand_v<metal::tensor<device Element, Extents, Rest...>> =
    !__is_const(Element) && metal::is_same_v<typename Extents::index_type, int> && Extents::rank <= 2;
template <typename Element, typename Extents, typename... Rest>
constexpr bool is_operand_v<metal::tensor<threadgroup Element, Extents, Rest...>> =
    !__is_const(Element) && metal::is_same_v<typename Extents::index_type, int> && Extents::rank <= 2;
template <typename Element, typename Role>
constexpr bool is_operand_v<cooperative_tensor<Element, Role>> = true;

template <typename Left, typename Right>
struct destination_role {};
template <typename Left, typename Right>
struct row_reduction_role {};
struct left_role {};
struct right_role {};

template <matmul2d_descriptor descriptor, typename Scope>
struct matmul2d {
  static_assert(descriptor.m % 16 == 0 || descriptor.n % 16 == 0, "M or N must be a multiple of 16");
  static_assert(descriptor.n % 8 == 0, "N must be a multiple of 8");
  static_assert(descriptor.k == dynamic_length_v<int> || descriptor.k % 16 == 0, "K must be a multiple of 16");

  template <typename Left, typename Right, typename Element>
  cooperative_tensor<Element, destination_role<Left, Right>> get_destination_cooperative_tensor() const {
    static_assert(is_operand_v<Left> && is_operand_v<Right>, "operands are tensors of elements that are not const");
    return {};
  }
  template <typename Left, typename Right, typename Element>
  cooperative_tensor<Element, row_reduction_role<Left, Right>> get_row_reduction_destination_cooperative_tensor() const;
  template <typename LeftElement, typename RightElement, typename Element, typename Coordinate = int>
  cooperative_tensor<LeftElement, left_role> get_left_input_cooperative_tensor() const;
  template <typename LeftElement, typename RightElement, typename Element, typename Coordinate = int>
  cooperative_tensor<RightElement, right_role> get_right_input_cooperative_tensor() const;

  // The operands are those the destination was made for, in their order, and temporaries do not bind.
  template <typename Left, typename Right, typename Element>
  void run(thread Left&, thread Right&, thread cooperative_tensor<Element, destination_role<Left, Right>>&) const;
  template <typename Left, typename Right, typename Element, typename Extents, typename... Rest>
  void run(thread Left&, thread Right&, thread metal::tensor<device Element, Extents, Rest...>&) const;
};

enum class reduction_operation { sum, max, min };
template <typename Source, typename Destination>
void reduce_rows(
    thread Source&,
    thread Destination&,
    reduction_operation = reduction_operation::sum,
    typename Destination::element_type = 0);

} // namespace mpp::tensor_ops

#endif
