#pragma once

#include "extents.h"
#include "formats.h"

namespace emu {

// Where a tensor's elements end in each dimension. A static slice has extents of its own but its elements end where
// its parent's do: nothing checks that on a GPU.
template <int Rank>
struct TensorShape {
  int64_t extents[Rank];
  int64_t strides[Rank]; // elements
  int64_t limits[Rank];
};

struct NoPlane {};

} // namespace emu

namespace metal {

struct tensor_handle {};
struct tensor_inline {};
struct tensor_offset {};

struct tensor_plane_scales {};

// One scale of type S for each `Block0` elements along dimension 0.
template <typename Plane, typename S, int Block0, int... Blocks>
struct tensor_blockwise {
  static_assert(is_same_v<remove_cv_t<S>, metal_fp8_ue8m0_format>, "scales are ue8m0");
  static_assert(Block0 == 32 && ((Blocks == 1) && ...), "blocks are 32 along dimension 0 and 1 elsewhere");
  using data_handle_type = uchar*;
  static constexpr int block = Block0;

  tensor_blockwise() = default;
  tensor_blockwise(uchar* scales) : data(scales) {
  }

  uchar* data = nullptr;
};

namespace detail {
template <typename... Tags>
struct scale_plane {
  using type = emu::NoPlane;
};
template <typename Tag, typename... Tags>
struct scale_plane<Tag, Tags...> : scale_plane<Tags...> {};
template <typename P, typename S, int... B, typename... Tags>
struct scale_plane<tensor_blockwise<P, S, B...>, Tags...> {
  using type = tensor_blockwise<P, S, B...>;
};
} // namespace detail

template <typename Element, typename Extents, typename Descriptor = tensor_handle, typename... Tags>
struct tensor {
  using element_type = Element;
  using value_type = remove_cv_t<Element>;
  using extents_type = Extents;
  using index_type = typename Extents::index_type;
  using storage = conditional_t<
      is_const_v<Element>,
      const typename emu::Format<value_type>::storage,
      typename emu::Format<value_type>::storage>;
  using data_handle_type = storage*;
  using plane_type = typename detail::scale_plane<Tags...>::type;
  static constexpr int rank = static_cast<int>(Extents::rank());
  static constexpr bool has_scales = !is_same_v<plane_type, emu::NoPlane>;
  using descriptor_type = Descriptor;

  tensor(const tensor&) = default;

  // Packed.
  tensor(data_handle_type pointer, const Extents& sizes) : data(pointer), base(pointer) {
    int64_t stride = 1;
    for (int i = 0; i < rank; ++i) {
      set_dimension(i, sizes.extent(i), stride);
      stride *= sizes.extent(i);
    }
  }

  template <typename Stride>
  tensor(
      data_handle_type pointer,
      const Extents& sizes,
      const array<Stride, static_cast<size_t>(rank)>& strides,
      plane_type scales = {}
  )
      : data(pointer), base(pointer), plane(scales) {
    for (int i = 0; i < rank; ++i) {
      set_dimension(i, sizes.extent(i), strides[i]);
    }
  }

  tensor(data_handle_type pointer, const emu::TensorShape<rank>& s, plane_type scales)
      : data(pointer), base(pointer), shape(s), plane(scales) {
  }

  static constexpr int get_rank() {
    return rank;
  }
  index_type get_extent(int i) const {
    return static_cast<index_type>(shape.extents[i]);
  }
  index_type get_stride(int i) const {
    return static_cast<index_type>(shape.strides[i]);
  }
  static constexpr size_t get_static_extent(int i) {
    return Extents::static_extent(i);
  }

  // The origin moved; what remains of the parent is the extent.
  template <typename... I>
    requires(sizeof...(I) == rank)
  auto slice(I... origin) const {
    return slice_as<dextents<index_type, rank>>(origin...);
  }

  // The origin moved, with extents of its own that nothing checks against the parent.
  template <size_t... E, typename... I>
    requires(sizeof...(E) > 0 && sizeof...(I) == rank)
  auto slice(I... origin) const {
    static_assert(sizeof...(E) == rank, "one extent for each dimension");
    return slice_as<extents<index_type, E...>>(origin...);
  }

  // Whether an element may be read or written as far as the parent goes.
  bool contains(const int64_t (&index)[rank]) const {
    for (int i = 0; i < rank; ++i) {
      if (index[i] < 0 || index[i] >= shape.limits[i]) {
        return false;
      }
    }
    return true;
  }

  int64_t offset_of(const int64_t (&index)[rank]) const {
    int64_t offset = first;
    for (int i = 0; i < rank; ++i) {
      offset += index[i] * shape.strides[i];
    }
    return offset;
  }

  template <typename... I>
  auto& operator[](I... index) const {
    static_assert(!emu::is_format<value_type>, "elements of this format have no address");
    return data[checked_offset(index...)];
  }
  template <typename... I>
  value_type get(I... index) const {
    return static_cast<value_type>(emu::read_element<value_type>(data, checked_offset(index...)));
  }
  template <typename... I>
  void set(value_type value, I... index) const {
    data[checked_offset(index...)] = value;
  }

  data_handle_type data;
  data_handle_type base;           // of the tensor this one was sliced from
  int64_t first = 0;               // element of `data` at index 0: sub-byte slices may start inside a byte
  int64_t plane_first[2] = {0, 0}; // origin along dimensions 0 and 1 within the scale plane
  int64_t plane_row = 0;           // scales between rows
  emu::TensorShape<rank> shape;
  [[no_unique_address]] plane_type plane{};

 private:
  void set_dimension(int i, int64_t extent, int64_t stride) {
    shape.extents[i] = extent;
    shape.limits[i] = extent;
    shape.strides[i] = stride;
    if (has_scales && i == 0) {
      plane_row = extent / 32;
    }
  }

  template <typename... I>
  int64_t checked_offset(I... index) const {
    const int64_t at[] = {static_cast<int64_t>(index)...};
    for (int i = 0; i < rank; ++i) {
      if (at[i] < 0 || at[i] >= shape.limits[i]) {
        emu::fail(
            "tensor index %ld is outside of dimension %d, which has %ld elements",
            static_cast<long>(at[i]),
            i,
            static_cast<long>(shape.limits[i])
        );
      }
    }
    return offset_of(at);
  }

  template <typename Sliced, typename... I>
  auto slice_as(I... origin) const {
    static_assert(!is_same_v<Descriptor, tensor_offset>);
    const int64_t at[] = {static_cast<int64_t>(origin)...};
    emu::TensorShape<rank> sliced;
    int64_t offset = first;
    for (int i = 0; i < rank; ++i) {
      offset += at[i] * shape.strides[i];
      sliced.strides[i] = shape.strides[i];
      sliced.limits[i] = shape.limits[i] - at[i];
      const size_t fixed = Sliced::static_extent(i);
      sliced.extents[i] =
          fixed == dynamic_extent ? max(shape.extents[i] - at[i], int64_t(0)) : static_cast<int64_t>(fixed);
    }
    check_reach(offset);
    using Result = conditional_t<
        is_same_v<Descriptor, tensor_handle>,
        tensor<Element, Sliced, tensor_handle, tensor_offset, Tags...>,
        tensor<Element, Sliced, Descriptor, Tags...>>;
    Result result(data, sliced, plane);
    result.base = base;
    result.first = offset;
    result.plane_row = plane_row;
    for (int i = 0; i < rank && i < 2; ++i) {
      result.plane_first[i] = plane_first[i] + at[i];
    }
    return result;
  }

  // Slices whose byte offset needs more than 31 bits land 4 GB too low on an M5.
  void check_reach(int64_t offset) const {
    const int64_t bytes = offset * emu::Format<value_type>::bits / 8;
    if (bytes >= int64_t(1) << 31) {
      emu::fail(
          "a slice starts %ld bytes after its tensor; from 2 GB on, build the tensor at the tile instead",
          static_cast<long>(bytes)
      );
    }
  }
};

template <typename T, typename E>
tensor(T*, const E&) -> tensor<T, E, tensor_inline>;
template <typename T, typename E, typename S, size_t N>
tensor(T*, const E&, const array<S, N>&) -> tensor<T, E, tensor_inline>;

template <typename T>
constexpr bool is_tensor_handle_v = false;
template <typename T, typename E, typename... Tags>
constexpr bool is_tensor_handle_v<tensor<T, E, tensor_handle, Tags...>> = true;
template <typename T>
constexpr bool is_tensor_inline_v = false;
template <typename T, typename E, typename... Tags>
constexpr bool is_tensor_inline_v<tensor<T, E, tensor_inline, Tags...>> = true;
template <typename T>
constexpr bool has_tensor_offset_v = false;
template <typename T, typename E, typename D, typename... Tags>
constexpr bool has_tensor_offset_v<tensor<T, E, D, Tags...>> = disjunction_v<is_same<Tags, tensor_offset>...>;
template <typename T>
constexpr bool is_tensor_v = false;
template <typename T, typename E, typename D, typename... Tags>
constexpr bool is_tensor_v<tensor<T, E, D, Tags...>> = true;

} // namespace metal
