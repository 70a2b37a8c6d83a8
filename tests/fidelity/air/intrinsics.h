#pragma once

// The functions that AIR calls, on the emulator's runtime. Include after kernel_library.h.
//
// All calls of one function count as one place in the code: lanes of a simdgroup that diverge into two calls of the
// same function would be taken to be at one. The kernels that run here do not diverge so.

namespace air {

typedef uint uint2v __attribute__((ext_vector_type(2)));
typedef uint uint3v __attribute__((ext_vector_type(3)));
typedef float float2v __attribute__((ext_vector_type(2)));
typedef long long2v __attribute__((ext_vector_type(2)));

EMU_INLINE uint passed(uint value) {
  return value;
}
EMU_INLINE ushort passed(ushort value) {
  return value;
}
EMU_INLINE void* passed(void* value) {
  return value;
}
EMU_INLINE const void* passed(const void* value) {
  return value;
}
EMU_INLINE uint2v passed(metal::uint2 value) {
  return {value.x, value.y};
}
EMU_INLINE uint3v passed(metal::uint3 value) {
  return {value.x, value.y, value.z};
}

} // namespace air

#define AIR_FUNCTION(result, symbol, name, parameters)                                  \
  extern "C" __attribute__((used, visibility("hidden"))) result name parameters asm(symbol); \
  extern "C" inline result name parameters

AIR_FUNCTION(void, "air.wg.barrier", air_wg_barrier, (int flags, int)) {
  emu::barrier(static_cast<uint32_t>(flags));
}
AIR_FUNCTION(void, "air.simdgroup.barrier", air_simdgroup_barrier, (int flags, int)) {
  emu::simdgroup_barrier(static_cast<uint32_t>(flags));
}
AIR_FUNCTION(int, "air.get_simdgroup_size.i32", air_get_simdgroup_size, ()) {
  return emu::simd_width;
}
AIR_FUNCTION(short, "air.get_thread_index_in_simdgroup.i16", air_get_thread_index_in_simdgroup, ()) {
  return static_cast<short>(emu::machine->lane);
}

AIR_FUNCTION(float, "air.simd_sum.f32", air_simd_sum, (float x)) {
  return metal::simd_sum(x);
}
AIR_FUNCTION(float, "air.simd_max.f32", air_simd_max, (float x)) {
  return metal::simd_max(x);
}
AIR_FUNCTION(float, "air.simd_prefix_inclusive_sum.f32", air_simd_prefix_inclusive_sum, (float x)) {
  return metal::simd_prefix_inclusive_sum(x);
}
AIR_FUNCTION(float, "air.simd_shuffle_xor.f32", air_simd_shuffle_xor, (float x, ushort mask)) {
  return metal::simd_shuffle_xor(x, mask);
}

AIR_FUNCTION(float, "air.fast_exp.f32", air_fast_exp, (float x)) {
  return metal::fast::exp(x);
}
AIR_FUNCTION(float, "air.fast_exp2.f32", air_fast_exp2, (float x)) {
  return metal::fast::exp2(x);
}
AIR_FUNCTION(float, "air.fast_log.f32", air_fast_log, (float x)) {
  return metal::fast::log(x);
}
AIR_FUNCTION(float, "air.log.f32", air_log, (float x)) {
  return metal::log(x);
}
AIR_FUNCTION(float, "air.fmax.f32", air_fmax, (float a, float b)) {
  return metal::fmax(a, b);
}
AIR_FUNCTION(float, "air.convert.f.f32.s.i32", air_convert_int, (int x)) {
  return static_cast<float>(x);
}
AIR_FUNCTION(float, "air.convert.f.f32.u.i32", air_convert_uint, (uint x)) {
  return static_cast<float>(x);
}
AIR_FUNCTION(__bf16, "air.convert.f.bf16.f.f16", air_convert_half_to_bfloat, (half x)) {
  return __builtin_bit_cast(__bf16, bfloat(x));
}
// What a host without bfloat instructions rounds with.
AIR_FUNCTION(__bf16, "__truncsfbf2", air_round_to_bfloat, (float x)) {
  return __builtin_bit_cast(__bf16, bfloat(x));
}
AIR_FUNCTION(int, "air.max.s.i32", air_max, (int a, int b)) {
  return metal::max(a, b);
}
AIR_FUNCTION(int, "air.min.s.i32", air_min, (int a, int b)) {
  return metal::min(a, b);
}
AIR_FUNCTION(int, "air.clamp.s.i32", air_clamp, (int x, int low, int high)) {
  return metal::clamp(x, low, high);
}

// simdgroup_matrix: the two elements of a lane.

namespace air {

EMU_INLINE metal::simdgroup_float8x8 matrix(float2v elements) {
  metal::simdgroup_float8x8 m;
  m.elements = metal::float2(elements[0], elements[1]);
  return m;
}
EMU_INLINE float2v elements(const metal::simdgroup_float8x8& m) {
  return {m.elements.v[0], m.elements.v[1]};
}

// Where element `i` of the lane lies, for strides along columns and rows.
EMU_INLINE long offset(int i, long2v strides, long2v origin) {
  const auto [row, col] = emu::matrix_place(emu::machine->lane);
  return (col + i + origin[0]) * strides[0] + (row + origin[1]) * strides[1];
}

} // namespace air

AIR_FUNCTION(air::float2v, "air.simdgroup_matrix_8x8_init_filled.v64f32.f32", air_matrix_filled, (float x)) {
  return {x, x};
}
AIR_FUNCTION(
    air::float2v,
    "air.simdgroup_matrix_8x8_multiply_accumulate.v64f32.v64f32.v64f32.v64f32",
    air_matrix_multiply_accumulate,
    (air::float2v a, air::float2v b, air::float2v c)
) {
  metal::simdgroup_float8x8 d;
  metal::simdgroup_multiply_accumulate(d, air::matrix(a), air::matrix(b), air::matrix(c));
  return air::elements(d);
}
AIR_FUNCTION(
    air::float2v,
    "air.simdgroup_matrix_8x8_load.v64f32.p1f32",
    air_matrix_load,
    (const float* from, air::long2v, air::long2v strides, air::long2v origin)
) {
  return {from[air::offset(0, strides, origin)], from[air::offset(1, strides, origin)]};
}
AIR_FUNCTION(
    void,
    "air.simdgroup_matrix_8x8_store.v64f32.p1f32",
    air_matrix_store,
    (air::float2v x, float* to, air::long2v, air::long2v strides, air::long2v origin)
) {
  to[air::offset(0, strides, origin)] = x[0];
  to[air::offset(1, strides, origin)] = x[1];
}

// matmul2d on cooperative operands of one simdgroup: fragments in order, as layout.h has them.

namespace air {

EMU_RUNTIME_BEGIN

struct Descriptor {
  int m, n, k;
  bool transpose_left, transpose_right, relaxed_precision;
  int mode; // 1 to accumulate
};

// Operands are numbered 0, 1, 2: left, right, destination. The low byte of a type is its bits.
constexpr int bytes_of(int type) {
  return (type & 0xff) / 8;
}
constexpr int elements_of(int operand, int m, int n, int k) {
  return (operand == 0 ? m * k : operand == 1 ? k * n : m * n) / 32;
}

// visit(lane, slot, row, col) for a matrix that is spread over a simdgroup.
template <typename Visit>
void for_elements(int rows, int cols, Visit visit) {
  for (int lane = 0; lane < 32; ++lane) {
    for (int slot = 0; slot < rows * cols / 32; ++slot) {
      const emu::Place place = emu::fragment_place(lane, slot % 8);
      const int fragment = slot / 8, across = cols / 16;
      visit(lane, slot, place.row + fragment / across * 16, place.col + fragment % across * 16);
    }
  }
}

template <typename Left, typename Right, typename Destination>
struct Product {
  const Descriptor* descriptor;
  const Left* left;
  const Right* right;
  Destination* destination;

  template <bool truncate>
  static void multiply(void* const* requests) {
    const auto of = [&](int lane) -> const Product& { return *static_cast<Product*>(requests[lane]); };
    const Descriptor& d = *of(0).descriptor;
    alignas(64) static float a_panels[32 * 32], b_panels[32 * 32], c[32 * 32];
    const emu::LeftPanels<float> a{a_panels, d.k};
    const emu::RightPanels<float> b{b_panels, d.k};
    for_elements(d.transpose_left ? d.k : d.m, d.transpose_left ? d.m : d.k, [&](int lane, int slot, int r, int q) {
      a.at(d.transpose_left ? q : r, d.transpose_left ? r : q) = emu::widen<float, truncate>(of(lane).left[slot]);
    });
    for_elements(d.transpose_right ? d.n : d.k, d.transpose_right ? d.k : d.n, [&](int lane, int slot, int r, int q) {
      b.at(d.transpose_right ? r : q, d.transpose_right ? q : r) = emu::widen<float, truncate>(of(lane).right[slot]);
    });
    for_elements(d.m, d.n, [&](int lane, int slot, int r, int q) {
      c[r * d.n + q] = d.mode == 1 ? static_cast<float>(of(lane).destination[slot]) : 0.0f;
    });
    emu::multiply_panels<float>(a, b, c, d.m, d.n);
    for_elements(d.m, d.n, [&](int lane, int slot, int r, int q) {
      of(lane).destination[slot] = static_cast<Destination>(c[r * d.n + q]);
    });
    emu::machine->counters.matrix_flops += 2ull * d.m * d.n * d.k;
    emu::machine->counters.matmul2d_runs += 1;
  }

  static void operation(void* const* requests, uint32_t mask, uint32_t) {
    if (mask != 0xffffffffu) {
      emu::fail("matmul2d was reached by some lanes only (mask %08x)", mask);
    }
    const bool two_floats = metal::is_same_v<Left, float> && metal::is_same_v<Right, float>;
    const bool truncate = two_floats && static_cast<Product*>(requests[0])->descriptor->relaxed_precision;
    truncate ? multiply<true>(requests) : multiply<false>(requests);
  }
};

EMU_RUNTIME_END

} // namespace air

AIR_FUNCTION(
    void,
    "__tensorops_impl_matmul2d_op_cooperative_tensor_init",
    air_cooperative_tensor_init,
    (int, int, int, int, char, char, char, int, void*, int, int, int, int)
) {
}
AIR_FUNCTION(
    long,
    "__tensorops_impl_matmul2d_op_cooperative_tensor_data_size",
    air_cooperative_tensor_data_size,
    (int operand, int m, int n, int k, char, char, char, int, int left, int right, int destination, int)
) {
  const int types[] = {left, right, destination};
  return air::elements_of(operand, m, n, k) * air::bytes_of(types[operand]);
}
// Of slot `i` of an operand's storage; -1 asks for the storage itself.
AIR_FUNCTION(
    char*,
    "__tensorops_impl_matmul2d_op_cooperative_tensor_get_element_pointer",
    air_cooperative_tensor_get_element_pointer,
    (int operand, int m, int n, int k, char, char, char, int, char* data, ushort i, int left, int right, int destination)
) {
  if (i == 0xffff) {
    return data;
  }
  if (i >= air::elements_of(operand, m, n, k)) {
    emu::fail("slot %d of an operand of capacity %d", static_cast<int>(i), air::elements_of(operand, m, n, k));
  }
  const int types[] = {left, right, destination};
  return data + i * air::bytes_of(types[operand]);
}

#define AIR_MATMUL2D(types, Left, Right)                                                          \
  AIR_FUNCTION(                                                                                   \
      void,                                                                                       \
      "__tensorops_impl_matmul2d_op_run_cooperative_" #types "_f32",                              \
      air_matmul2d_##types,                                                                       \
      (const air::Descriptor* descriptor, const Left* left, const Right* right, float* destination, int) \
  ) {                                                                                             \
    air::Product<Left, Right, float> product{descriptor, left, right, destination};               \
    emu::rendezvous(&product, air::Product<Left, Right, float>::operation);                       \
  }
AIR_MATMUL2D(f16_f16, half, half)
AIR_MATMUL2D(b16_b16, bfloat, bfloat)
AIR_MATMUL2D(f32_f32, float, float)
AIR_MATMUL2D(f16_b16, half, bfloat)
AIR_MATMUL2D(f32_f16, float, half)
