#pragma once

#include "cooperative_tensor.h"
#include "operand_types.h"
#include "product.h"

namespace metal {

template <int N>
struct execution_threads {
  static_assert(N == 1, "execution_threads<1> is the only one");
  static constexpr int simdgroups = 0;
};
using execution_thread = execution_threads<1>;
template <int N>
struct execution_simdgroups {
  static_assert(N >= 1 && N <= 32);
  static constexpr int simdgroups = N;
};
using execution_simdgroup = execution_simdgroups<1>;

} // namespace metal

namespace mpp {
namespace tensor_ops {

using namespace metal;

template <typename T>
constexpr T dynamic_length_v = numeric_limits<T>::max();

struct matmul2d_descriptor {
  enum class mode { multiply, multiply_accumulate };

  constexpr matmul2d_descriptor(
      int m_,
      int n_,
      int k_ = static_cast<int>(dynamic_extent),
      bool transpose_left_ = false,
      bool transpose_right_ = false,
      bool relaxed_precision_ = false,
      mode matmul_mode_ = mode::multiply
  )
      : m(m_),
        n(n_),
        k(k_),
        transpose_left(transpose_left_),
        transpose_right(transpose_right_),
        relaxed_precision(relaxed_precision_),
        matmul_mode(matmul_mode_) {
  }

  constexpr bool dynamic_k() const {
    return k == static_cast<int>(dynamic_extent) || k == dynamic_length_v<int>;
  }

  int m, n, k;
  bool transpose_left, transpose_right, relaxed_precision;
  mode matmul_mode;
};

// Roles of cooperative tensors.
template <typename Left, typename Right>
struct destination_role {};
struct left_role {};
struct right_role {};

} // namespace tensor_ops
} // namespace mpp

namespace emu {

using mpp::tensor_ops::matmul2d_descriptor;

template <typename Left, typename Right, typename Destination>
struct MatmulRequest {
  const Left* left;
  const Right* right;
  Destination* destination;
};

// What an operand's elements become before they are multiplied.
template <typename Accumulator, bool truncate, typename T>
EMU_INLINE Accumulator widen(T value) {
  if constexpr (truncate && metal::is_same_v<T, float>) {
    return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, value) & 0xffffe000u); // tf32, toward zero
  } else {
    return static_cast<Accumulator>(value);
  }
}

EMU_RUNTIME_BEGIN

constexpr float nan_of(float) {
  return __builtin_nanf("");
}
constexpr int nan_of(int) {
  return 0x7a7a7a7a;
}

// One operand of a product as a matrix of X rows (M or N) and K columns.
template <typename Tensor, bool k_is_fast>
struct OperandTensor {
  using element = typename Tensor::value_type;
  static constexpr int x_dim = k_is_fast ? 1 : 0;
  static constexpr int k_dim = k_is_fast ? 0 : 1;

  const Tensor& tensor;
  const char* name;

  int64_t extent(int dim) const {
    return dim < Tensor::rank ? tensor.shape.extents[dim] : 1;
  }
  int64_t limit(int dim) const {
    return dim < Tensor::rank ? tensor.shape.limits[dim] : 1;
  }
  int64_t stride(int dim) const {
    return dim < Tensor::rank ? tensor.shape.strides[dim] : 0;
  }
  int64_t k() const {
    return extent(k_dim);
  }

  // Zero past the extents along X, where results are not stored; undefined past them along K, and wherever a static
  // slice goes on after its parent ends.
  template <bool truncate, typename Accumulator, int width>
  void pack(const Panels<Accumulator, width>& packed, int X) const {
    const int64_t K = packed.K;
    const int64_t x_end = metal::min<int64_t>(X, extent(x_dim));
    const int64_t x_real = metal::max<int64_t>(0, metal::min(x_end, limit(x_dim)));
    const int64_t k_real = metal::max<int64_t>(0, metal::min<int64_t>(K, metal::min(extent(k_dim), limit(k_dim))));
    if (machine->check) {
      report_reads(x_end, x_real, K, k_real);
    }
    const int64_t x_stride = stride(x_dim), k_stride = stride(k_dim);
    for (int64_t x = 0; x < round_up(X, width); ++x) {
      Accumulator* to = &packed.at(x, 0);
      const int64_t defined = x < x_real ? k_real : 0;
      const Accumulator rest = x < x_end ? nan_of(Accumulator{}) : Accumulator(0);
      for (int64_t k = 0; k < defined; ++k) {
        to[k * width] = value<Accumulator, truncate>(x, k, tensor.first + x * x_stride + k * k_stride);
      }
      for (int64_t k = defined; k < K; ++k) {
        to[k * width] = rest;
      }
    }
  }

 private:
  template <typename Accumulator, bool truncate>
  EMU_INLINE Accumulator value(int64_t x, int64_t k, int64_t offset) const {
    const auto widened = widen<Accumulator, truncate>(read_element<element>(tensor.data, offset));
    if constexpr (Tensor::has_scales) {
      return widened * scale(x, k);
    } else {
      return widened;
    }
  }

  float scale(int64_t x, int64_t k) const {
    static_assert(k_is_fast, "a scaled operand has K along dimension 0: left not transposed, right transposed");
    const int64_t row = x + tensor.plane_first[1];
    const int64_t col = k + tensor.plane_first[0];
    return decode_ue8m0(tensor.plane.data[row * tensor.plane_row + col / 32]);
  }

  void report_reads(int64_t x_end, int64_t x_real, int64_t K, int64_t k_real) const {
    if (x_end > x_real || metal::min(extent(k_dim), K) > k_real) {
      fail(
          "matmul2d reads past the end of its %s operand: a static slice of %ld by %ld where %ld by %ld are left",
          name,
          static_cast<long>(extent(0)),
          static_cast<long>(extent(1)),
          static_cast<long>(limit(0)),
          static_cast<long>(limit(1))
      );
    }
    if (K > k_real) {
      fail(
          "matmul2d runs over K = %ld, of which its %s operand has %ld",
          static_cast<long>(K),
          name,
          static_cast<long>(k_real)
      );
    }
    const int64_t rows = k_is_fast ? x_real : k_real;
    const int64_t columns = k_is_fast ? k_real : x_real;
    constexpr int bits = Format<element>::bits;
    const auto* bytes = reinterpret_cast<const char*>(tensor.data);
    for (int64_t row = 0; row < rows && columns > 0; ++row) {
      const int64_t start = tensor.first + row * stride(1);
      if (stride(0) == 1) {
        const int64_t first_byte = start * bits / 8;
        const int64_t end_byte = ((start + columns) * bits + 7) / 8;
        machine->access(bytes + first_byte, end_byte - first_byte, Access::read, __builtin_return_address(0));
      } else {
        for (int64_t col = 0; col < columns; ++col) {
          machine->access(
              bytes + (start + col * stride(0)) * bits / 8, (bits + 7) / 8, Access::read, __builtin_return_address(0)
          );
        }
      }
    }
  }
};

template <matmul2d_descriptor descriptor, typename Scope, typename Left, typename Right, typename Destination>
struct MatmulRun {
  using Request = MatmulRequest<Left, Right, Destination>;
  using D = typename Destination::element_type;
  using Accumulator = metal::conditional_t<metal::is_integral_v<D>, int, float>;
  using LE = metal::remove_cv_t<typename Left::element_type>;
  using RE = metal::remove_cv_t<typename Right::element_type>;

  static constexpr int M = descriptor.m, N = descriptor.n;
  static constexpr int padded_m = round_up(M, tile_rows), padded_n = round_up(N, tile_cols);
  static constexpr bool left_is_tensor = metal::is_tensor_v<Left>, right_is_tensor = metal::is_tensor_v<Right>;
  static constexpr bool accumulates = descriptor.matmul_mode == matmul2d_descriptor::mode::multiply_accumulate;
  // tf32 wherever two float operands meet and precision is relaxed.
  static constexpr bool truncate =
      descriptor.relaxed_precision && metal::is_same_v<LE, float> && metal::is_same_v<RE, float>;

  static void operation(void* const* requests, uint32_t mask, uint32_t) {
    if (Scope::simdgroups >= 1 && mask != 0xffffffffu) {
      fail("matmul2d was reached by some lanes only (mask %08x)", mask);
    }
    const Request& first = *static_cast<Request*>(requests[0]);
    const int K = k_of(first);
    const auto bytes = [](int64_t elements) { return (elements * 4 + 63) / 64 * 64; };
    const int64_t a_bytes = bytes(LeftPanels<Accumulator>::elements(M, K)),
                  b_bytes = bytes(RightPanels<Accumulator>::elements(N, K));
    char* memory = static_cast<char*>(machine->scratch(a_bytes + b_bytes + bytes(padded_m * padded_n)));
    const LeftPanels<Accumulator> a{reinterpret_cast<Accumulator*>(memory), K};
    const RightPanels<Accumulator> b{reinterpret_cast<Accumulator*>(memory + a_bytes), K};
    auto* c = reinterpret_cast<Accumulator*>(memory + a_bytes + b_bytes);

    if constexpr (left_is_tensor) {
      OperandTensor<Left, !descriptor.transpose_left>{*first.left, "left"}.template pack<truncate>(a, M);
    } else {
      __builtin_memset(a.data, 0, a_bytes);
      gather_operand<Left, descriptor.transpose_left>(requests, a, [](void* r) {
        return static_cast<Request*>(r)->left;
      });
    }
    if constexpr (right_is_tensor) {
      OperandTensor<Right, descriptor.transpose_right>{*first.right, "right"}.template pack<truncate>(b, N);
    } else {
      __builtin_memset(b.data, 0, b_bytes);
      gather_operand<Right, !descriptor.transpose_right>(requests, b, [](void* r) {
        return static_cast<Request*>(r)->right;
      });
    }

    __builtin_memset(c, 0, bytes(padded_m * padded_n));
    if constexpr (accumulates) {
      visit_destination(requests, false, [&](int row, int col, D& element) {
        c[row * padded_n + col] = static_cast<Accumulator>(element);
      });
    }
    multiply_panels<Accumulator>(a, b, c, padded_m, padded_n);
    visit_destination(requests, true, [&](int row, int col, D& element) {
      element = static_cast<D>(c[row * padded_n + col]);
    });
    machine->counters.matrix_flops += 2ull * M * N * K;
    machine->counters.matmul2d_runs += 1;
  }

 private:
  static int k_of(const Request& request) {
    if constexpr (!descriptor.dynamic_k()) {
      return descriptor.k;
    } else if constexpr (left_is_tensor) {
      return static_cast<int>(OperandTensor<Left, !descriptor.transpose_left>{*request.left, "left"}.k());
    } else {
      return static_cast<int>(OperandTensor<Right, descriptor.transpose_right>{*request.right, "right"}.k());
    }
  }

  // Cooperative inputs live in one simdgroup (or thread). k_is_row says that the tensor's rows run along K.
  template <typename Operand, bool k_is_row, int width, typename Get>
  static void gather_operand(void* const* requests, const Panels<Accumulator, width>& packed, Get get) {
    using Layout = typename Operand::layout;
    for (int lane = 0; lane < (Scope::simdgroups == 0 ? 1 : 32); ++lane) {
      const Operand& part = *get(requests[lane]);
      for (int slot = 0; slot < Layout::capacity; ++slot) {
        const Place& place = Layout::place(0, lane, slot);
        if (place.valid) {
          const int k = k_is_row ? place.row : place.col;
          const int x = k_is_row ? place.col : place.row;
          packed.at(x, k) = widen<Accumulator, truncate>(part.elements[slot]);
        }
      }
    }
  }

  template <typename Visit>
  static void visit_destination(void* const* requests, bool writes, Visit visit) {
    if constexpr (metal::is_tensor_v<Destination>) {
      Destination& tensor = *static_cast<Request*>(requests[0])->destination;
      const int64_t rows = metal::min<int64_t>(M, tensor.shape.extents[1]),
                    cols = metal::min<int64_t>(N, tensor.shape.extents[0]);
      if (rows > tensor.shape.limits[1] || cols > tensor.shape.limits[0]) {
        fail(
            "matmul2d writes past the end of its destination: a static slice of %ld columns by %ld rows where %ld by "
            "%ld are left",
            static_cast<long>(tensor.shape.extents[0]),
            static_cast<long>(tensor.shape.extents[1]),
            static_cast<long>(tensor.shape.limits[0]),
            static_cast<long>(tensor.shape.limits[1])
        );
      }
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t col = 0; col < cols; ++col) {
          D& element = tensor.data[tensor.first + col * tensor.shape.strides[0] + row * tensor.shape.strides[1]];
          if (machine->check) {
            machine->access(&element, sizeof(D), writes ? Access::write : Access::read, __builtin_return_address(0));
          }
          visit(static_cast<int>(row), static_cast<int>(col), element);
        }
      }
    } else {
      using Layout = typename Destination::layout;
      constexpr int groups = Scope::simdgroups == 0 ? 1 : Scope::simdgroups;
      constexpr int lanes = Scope::simdgroups == 0 ? 1 : 32;
      for (int simdgroup = 0; simdgroup < groups; ++simdgroup) {
        for (int lane = 0; lane < lanes; ++lane) {
          Destination& part = *static_cast<Request*>(requests[simdgroup * 32 + lane])->destination;
          for (int slot = 0; slot < Layout::capacity; ++slot) {
            const Place& place = Layout::place(simdgroup, lane, slot);
            if (place.valid) {
              visit(place.row, place.col, part.elements[slot]);
            }
          }
        }
      }
    }
  }
};

EMU_RUNTIME_END

template <typename T>
struct ElementOf {
  using type = T;
};
template <typename T>
  requires(metal::is_tensor_v<T> || metal::is_cooperative_tensor_v<T>)
struct ElementOf<T> {
  using type = typename T::element_type;
};

} // namespace emu

namespace mpp {
namespace tensor_ops {

template <matmul2d_descriptor descriptor, typename Scope>
struct matmul2d {
  static constexpr int M = descriptor.m, N = descriptor.n, K = descriptor.k;
  static constexpr bool dynamic_k = descriptor.dynamic_k();
  static constexpr int simdgroups = Scope::simdgroups;
  static constexpr bool measured = simdgroups == 1 && M == 16 && ((N == 32 && K == 16) || (N == 16 && K == 32));

  static_assert(M > 0 && N > 0, "M and N are given");
  static_assert(simdgroups == 0 || M % 16 == 0 || N % 16 == 0, "at least one of M and N must be a multiple of 16");
  static_assert(simdgroups == 0 || N % 8 == 0, "N must be a multiple of 8");
  static_assert(simdgroups == 0 || dynamic_k || K % 16 == 0, "K must be dynamic or a multiple of 16");

  template <typename L, typename R, typename D>
  static constexpr bool check_types() {
    using LE = typename emu::ElementOf<L>::type;
    using RE = typename emu::ElementOf<R>::type;
    static_assert(
        !is_const_v<LE> && !is_const_v<RE> && !is_const_v<D>, "operands of const elements are not accepted: strip const"
    );
    static_assert(emu::accepted_operands<LE, RE, D>, "matmul2d does not take these element types");
    return true;
  }

  template <int rows, int cols>
  using layout = typename emu::ScopeLayout<simdgroups, rows, cols, measured>::type;
  using left_layout = layout<descriptor.transpose_left ? K : M, descriptor.transpose_left ? M : K>;
  using right_layout = layout<descriptor.transpose_right ? N : K, descriptor.transpose_right ? K : N>;

  template <typename L, typename R>
  using destination_role_of = destination_role<typename emu::ElementOf<L>::type, typename emu::ElementOf<R>::type>;

  template <typename L, typename R, typename E>
  using cooperative_tensor_destination_t = cooperative_tensor<E, layout<M, N>, destination_role_of<L, R>>;
  template <typename LE, typename RE, typename DE>
  using cooperative_tensor_left_input_t = cooperative_tensor<LE, left_layout, left_role>;
  template <typename LE, typename RE, typename DE>
  using cooperative_tensor_right_input_t = cooperative_tensor<RE, right_layout, right_role>;

  // L and R are the types of the operands, in the order of run().
  template <typename L, typename R, typename E, typename = int>
  auto get_destination_cooperative_tensor() const {
    static_assert(check_types<L, R, E>());
    return cooperative_tensor_destination_t<L, R, E>{};
  }

  // LE, RE and DE are element types.
  template <typename LE, typename RE, typename DE, typename Coordinate = int>
  auto get_left_input_cooperative_tensor() const {
    static_assert(check_types<LE, RE, DE>());
    check_input();
    return cooperative_tensor_left_input_t<LE, RE, DE>{};
  }
  template <typename LE, typename RE, typename DE, typename Coordinate = int>
  auto get_right_input_cooperative_tensor() const {
    static_assert(check_types<LE, RE, DE>());
    check_input();
    return cooperative_tensor_right_input_t<LE, RE, DE>{};
  }

  template <typename Left, typename Right, typename Destination>
  EMU_INLINE void run(Left& left, Right& right, Destination& destination) const {
    check_operands<Left, Right, Destination>();
    using Run = emu::MatmulRun<descriptor, Scope, remove_cv_t<Left>, remove_cv_t<Right>, Destination>;
    typename Run::Request request{&left, &right, &destination};
    if constexpr (simdgroups == 0) {
      void* requests[] = {&request};
      Run::operation(requests, 1, 0);
    } else if constexpr (simdgroups == 1) {
      emu::rendezvous(&request, Run::operation);
    } else {
      emu::rendezvous_threadgroup(&request, Run::operation, simdgroups);
    }
  }

 private:
  static constexpr void check_input() {
    static_assert(simdgroups <= 1, "input cooperative tensors need a single simdgroup");
    static_assert(!dynamic_k, "input cooperative tensors need a K");
  }

  template <typename Left, typename Right, typename Destination>
  static constexpr void check_operands() {
    static_assert(check_types<Left, Right, typename Destination::element_type>());
    if constexpr (is_cooperative_tensor_v<Destination>) {
      static_assert(
          is_same_v<typename Destination::role, destination_role_of<Left, Right>>,
          "Input types must match cooperative tensor types"
      );
      static_assert(
          Destination::layout::rows == M && Destination::layout::cols == N, "the destination is of another operation"
      );
    } else {
      static_assert(!Destination::has_scales, "a destination has no scales");
    }
    if constexpr (is_cooperative_tensor_v<Left>) {
      static_assert(is_same_v<typename Left::role, left_role>, "the left operand is not a left input");
    } else {
      check_tensor<Left>();
      static_assert(!Left::has_scales || !descriptor.transpose_left, "a scaled left operand must not be transposed");
    }
    if constexpr (is_cooperative_tensor_v<Right>) {
      static_assert(is_same_v<typename Right::role, right_role>, "the right operand is not a right input");
    } else {
      check_tensor<Right>();
      static_assert(!Right::has_scales || descriptor.transpose_right, "a scaled right operand must be transposed");
    }
    if constexpr (
        is_cooperative_tensor_v<Left> && is_cooperative_tensor_v<Right> && is_cooperative_tensor_v<Destination>
    ) {
      static_assert(
          (M == 16 || M == 32) && (N == 16 || N == 32) && (K == 16 || K == 32),
          "three cooperative operands need M, N and K of 16 or 32"
      );
    }
  }

  template <typename Tensor>
  static constexpr void check_tensor() {
    static_assert(is_same_v<typename Tensor::index_type, int>, "tensors of an operation are indexed by int");
    static_assert(Tensor::rank == 2 || Tensor::rank == 1, "operands of matmul2d have rank 2");
  }

 public:
  // A destination of an earlier product as the left or right input of this one.
  template <typename LE, typename RE, typename DE, typename Source>
  static bool is_compatible_as_left_input(const Source&) {
    return !dynamic_k && !descriptor.transpose_left && is_same_v<typename Source::element_type, LE> &&
           Source::layout::rows == M && Source::layout::cols == K;
  }
  template <typename LE, typename RE, typename DE, typename Source>
  static bool is_compatible_as_right_input(const Source&) {
    return !dynamic_k && !descriptor.transpose_right && is_same_v<typename Source::element_type, RE> &&
           Source::layout::rows == K && Source::layout::cols == N;
  }
  template <typename LE, typename RE, typename DE, typename Source>
  EMU_INLINE auto get_left_input_cooperative_tensor(const Source& source) const {
    static_assert(
        !descriptor.transpose_left && Source::layout::rows == M && Source::layout::cols == K, "shapes differ"
    );
    auto result = get_left_input_cooperative_tensor<LE, RE, DE>();
    convert(source, result);
    return result;
  }
  template <typename LE, typename RE, typename DE, typename Source>
  EMU_INLINE auto get_right_input_cooperative_tensor(const Source& source) const {
    static_assert(
        !descriptor.transpose_right && Source::layout::rows == K && Source::layout::cols == N, "shapes differ"
    );
    auto result = get_right_input_cooperative_tensor<LE, RE, DE>();
    convert(source, result);
    return result;
  }

 private:
  template <typename Source, typename Target>
  struct Conversion {
    const Source* source;
    Target* target;

    static void operation(void* const* requests, uint32_t mask, uint32_t) {
      using T = typename Source::element_type;
      T matrix[Source::layout::rows][Source::layout::cols];
      emu::for_lanes(mask, [&](uint32_t lane) {
        const Source& part = *static_cast<Conversion*>(requests[lane])->source;
        for (int slot = 0; slot < Source::layout::capacity; ++slot) {
          const emu::Place& place = Source::layout::place(0, lane, slot);
          if (place.valid) {
            matrix[place.row][place.col] = part.elements[slot];
          }
        }
      });
      emu::for_lanes(mask, [&](uint32_t lane) {
        Target& part = *static_cast<Conversion*>(requests[lane])->target;
        for (int slot = 0; slot < Target::layout::capacity; ++slot) {
          const emu::Place& place = Target::layout::place(0, lane, slot);
          if (place.valid) {
            part.elements[slot] = matrix[place.row][place.col];
          }
        }
      });
    }
  };

  template <typename Source, typename Target>
  EMU_INLINE static void convert(const Source& source, Target& target) {
    static_assert(simdgroups == 1, "a destination becomes an input within one simdgroup");
    static_assert(is_same_v<typename Source::element_type, typename Target::element_type>, "element types differ");
    Conversion<Source, Target> conversion{&source, &target};
    emu::rendezvous(&conversion, Conversion<Source, Target>::operation);
  }

 public:
  template <typename L, typename R, typename E>
  auto get_row_reduction_destination_cooperative_tensor() const;
  template <typename L, typename R, typename E>
  auto get_column_reduction_destination_cooperative_tensor() const;
};

} // namespace tensor_ops
} // namespace mpp
