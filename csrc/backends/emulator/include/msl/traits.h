#pragma once

#include "../runtime/integers.h"

typedef _Float16 half;
struct bfloat;

namespace metal {

using ::bfloat;
using ::half;
using ::int16_t;
using ::int32_t;
using ::int64_t;
using ::int8_t;
using ::size_t;
using ::uchar;
using ::uint;
using ::uint16_t;
using ::uint32_t;
using ::uint64_t;
using ::uint8_t;
using ::ulong;
using ::ushort;

template <typename T, T V>
struct integral_constant {
  using value_type = T;
  using type = integral_constant;
  static constexpr T value = V;
  constexpr operator T() const {
    return V;
  }
};
template <bool V>
using bool_constant = integral_constant<bool, V>;
using true_type = bool_constant<true>;
using false_type = bool_constant<false>;

template <bool C, typename T = void>
struct enable_if {};
template <typename T>
struct enable_if<true, T> {
  using type = T;
};
template <bool C, typename T = void>
using enable_if_t = typename enable_if<C, T>::type;

template <bool C, typename A, typename B>
struct conditional {
  using type = A;
};
template <typename A, typename B>
struct conditional<false, A, B> {
  using type = B;
};
template <bool C, typename A, typename B>
using conditional_t = typename conditional<C, A, B>::type;

template <typename... Bs>
struct disjunction : bool_constant<(static_cast<bool>(Bs::value) || ...)> {};
template <typename... Bs>
struct conjunction : bool_constant<(static_cast<bool>(Bs::value) && ...)> {};
template <typename... Bs>
using _disjunction = disjunction<Bs...>;
template <typename... Bs>
constexpr bool disjunction_v = disjunction<Bs...>::value;
template <typename... Bs>
constexpr bool conjunction_v = conjunction<Bs...>::value;

#define EMU_TYPE_MAP(name, builtin) \
  template <typename T>             \
  struct name {                     \
    using type = builtin(T);        \
  };                                \
  template <typename T>             \
  using name##_t = typename name<T>::type;
EMU_TYPE_MAP(remove_cv, __remove_cv)
EMU_TYPE_MAP(remove_const, __remove_const)
EMU_TYPE_MAP(remove_volatile, __remove_volatile)
EMU_TYPE_MAP(remove_reference, __remove_reference_t)
EMU_TYPE_MAP(remove_pointer, __remove_pointer)
EMU_TYPE_MAP(remove_extent, __remove_extent)
EMU_TYPE_MAP(decay, __decay)
EMU_TYPE_MAP(make_unsigned, __make_unsigned)
EMU_TYPE_MAP(make_signed, __make_signed)
EMU_TYPE_MAP(underlying_type, __underlying_type)
#undef EMU_TYPE_MAP

// Address spaces are gone by now; what is left of them is const and the reference.
template <typename T>
using remove_addrspace_t = remove_cv_t<remove_reference_t<T>>;
template <typename T>
using remove_cvref_t = remove_cv_t<remove_reference_t<T>>;

#define EMU_TYPE_TEST(name, ...)               \
  template <typename T>                        \
  struct name : bool_constant<__VA_ARGS__> {}; \
  template <typename T>                        \
  constexpr bool name##_v = name<T>::value;
EMU_TYPE_TEST(is_integral, __is_integral(T))
EMU_TYPE_TEST(is_signed, __is_signed(T))
EMU_TYPE_TEST(is_unsigned, __is_unsigned(T))
EMU_TYPE_TEST(is_pointer, __is_pointer(T))
EMU_TYPE_TEST(is_reference, __is_reference(T))
EMU_TYPE_TEST(is_lvalue_reference, __is_lvalue_reference(T))
EMU_TYPE_TEST(is_const, __is_const(T))
EMU_TYPE_TEST(is_class, __is_class(T))
EMU_TYPE_TEST(is_union, __is_union(T))
EMU_TYPE_TEST(is_enum, __is_enum(T))
EMU_TYPE_TEST(is_array, __is_array(T))
EMU_TYPE_TEST(is_void, __is_void(T))
EMU_TYPE_TEST(is_function, __is_function(T))
EMU_TYPE_TEST(is_trivially_copyable, __is_trivially_copyable(T))
EMU_TYPE_TEST(
    is_floating_point, __is_floating_point(T) || __is_same(__remove_cv(T), half) || __is_same(__remove_cv(T), bfloat)
)
EMU_TYPE_TEST(is_arithmetic, is_floating_point<T>::value || __is_integral(T))
EMU_TYPE_TEST(is_scalar, is_arithmetic<T>::value || __is_enum(T) || __is_pointer(T))
#undef EMU_TYPE_TEST

template <typename A, typename B>
struct is_same : bool_constant<__is_same(A, B)> {};
template <typename A, typename B>
constexpr bool is_same_v = __is_same(A, B);
template <typename A, typename B>
struct is_convertible : bool_constant<__is_convertible(A, B)> {};
template <typename A, typename B>
constexpr bool is_convertible_v = __is_convertible(A, B);
template <typename A, typename B>
struct is_base_of : bool_constant<__is_base_of(A, B)> {};
template <typename A, typename B>
constexpr bool is_base_of_v = __is_base_of(A, B);
template <typename T, typename... A>
struct is_constructible : bool_constant<__is_constructible(T, A...)> {};
template <typename T, typename... A>
constexpr bool is_constructible_v = __is_constructible(T, A...);

template <typename T>
T&& declval() noexcept;

template <typename... T>
struct common_type;
template <typename T>
struct common_type<T> {
  using type = T;
};
template <typename A, typename B>
struct common_type<A, B> {
  using type = remove_cvref_t<decltype(true ? declval<A>() : declval<B>())>;
};
template <typename... T>
using common_type_t = typename common_type<T...>::type;

template <typename T>
constexpr T&& forward(remove_reference_t<T>& value) noexcept {
  return static_cast<T&&>(value);
}
template <typename T>
constexpr remove_reference_t<T>&& move(T&& value) noexcept {
  return static_cast<remove_reference_t<T>&&>(value);
}

template <size_t... I>
struct index_sequence {};
template <typename T, T... I>
using make_index_sequence_as = index_sequence<I...>;
template <size_t N>
using make_index_sequence = __make_integer_seq<make_index_sequence_as, size_t, N>;

} // namespace metal
