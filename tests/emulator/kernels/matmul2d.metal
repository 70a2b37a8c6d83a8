#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
#include <metal_stdlib>
#include <metal_tensor>

#include "matmul2d_problem.h"

using namespace metal;
using namespace mpp::tensor_ops;

// One tile of C = A B for each threadgroup, in the way of each name.

template <typename T>
using matrix = tensor<device T, dextents<int, 2>, tensor_inline>;

// Origin-shifted slices, the whole of K in one run, a cooperative destination of several simdgroups.
template <typename T, typename D, bool left, bool right, bool relaxed, int M, int N, int simdgroups>
[[kernel]] void matmul2d_slices(
    device T* a [[buffer(0)]],
    device T* b [[buffer(1)]],
    device D* c [[buffer(2)]],
    constant Problem& p [[buffer(3)]],
    uint2 tile [[threadgroup_position_in_grid]]
) {
  matrix<T> A(a, left ? dextents<int, 2>(p.M, p.K) : dextents<int, 2>(p.K, p.M), array<int, 2>{1, p.lda});
  matrix<T> B(b, right ? dextents<int, 2>(p.K, p.N) : dextents<int, 2>(p.N, p.K), array<int, 2>{1, p.ldb});
  matrix<D> C(c, dextents<int, 2>(p.N, p.M), array<int, 2>{1, p.ldc});
  constexpr auto descriptor = matmul2d_descriptor(
      M, N, static_cast<int>(dynamic_extent), left, right, relaxed, matmul2d_descriptor::mode::multiply
  );
  matmul2d<descriptor, execution_simdgroups<simdgroups>> op;
  const int m = tile.y * M, n = tile.x * N;
  auto tA = left ? A.slice(m, 0) : A.slice(0, m);
  auto tB = right ? B.slice(0, n) : B.slice(n, 0);
  auto tC = C.slice(n, m);
  auto acc = op.template get_destination_cooperative_tensor<
      remove_addrspace_t<decltype(tA)>,
      remove_addrspace_t<decltype(tB)>,
      D>();
  op.run(tA, tB, acc);
  acc.store(tC);
}

#define instantiate_slices(name, T, D, left, right, relaxed, M, N, S)                                               \
  template [[host_name("slices_" #name)]] [[kernel]] decltype(matmul2d_slices<T, D, left, right, relaxed, M, N, S>) \
      matmul2d_slices<T, D, left, right, relaxed, M, N, S>;
#define instantiate_types(suffix, left, right)                                                              \
  instantiate_slices(float_float_##suffix, float, float, left, right, false, 64, 32, 4)                     \
      instantiate_slices(half_float_##suffix, half, float, left, right, false, 64, 32, 4)                   \
          instantiate_slices(half_half_##suffix, half, half, left, right, false, 64, 32, 4)                 \
              instantiate_slices(bfloat_float_##suffix, bfloat, float, left, right, false, 64, 32, 4)       \
                  instantiate_slices(bfloat_bfloat_##suffix, bfloat, bfloat, left, right, false, 64, 32, 4) \
                      instantiate_slices(char_int_##suffix, char, int, left, right, false, 64, 32, 4)
instantiate_types(nn, false, false) instantiate_types(nt, false, true) instantiate_types(tn, true, false)
    instantiate_types(tt, true, true) instantiate_slices(relaxed, float, float, false, false, true, 64, 32, 4)
        instantiate_slices(one_simdgroup, half, float, false, false, false, 32, 32, 1)
            instantiate_slices(three_simdgroups, half, float, false, false, false, 48, 40, 3)
                instantiate_slices(large, half, float, false, false, false, 128, 64, 4)
                    instantiate_slices(large_float, float, float, false, false, false, 128, 64, 4)
                        instantiate_slices(large_bfloat, bfloat, float, false, false, false, 128, 64, 4)

    // Straight to device memory, accumulating onto what is there.
    [[kernel]] void accumulate_to_device(
        device half* a [[buffer(0)]],
        device half* b [[buffer(1)]],
        device float* c [[buffer(2)]],
        constant Problem& p [[buffer(3)]],
        uint2 tile [[threadgroup_position_in_grid]]
    ) {
  matrix<half> A(a, dextents<int, 2>(p.K, p.M), array<int, 2>{1, p.lda});
  matrix<half> B(b, dextents<int, 2>(p.N, p.K), array<int, 2>{1, p.ldb});
  matrix<float> C(c, dextents<int, 2>(p.N, p.M), array<int, 2>{1, p.ldc});
  constexpr auto descriptor = matmul2d_descriptor(
      32, 32, dynamic_length_v<int>, false, false, false, matmul2d_descriptor::mode::multiply_accumulate
  );
  matmul2d<descriptor, execution_simdgroups<2>> op;
  auto tA = A.slice(0, tile.y * 32);
  auto tB = B.slice(tile.x * 32, 0);
  auto tC = C.slice(tile.x * 32, tile.y * 32);
  op.run(tA, tB, tC);
}

// Slices of static extents: nothing checks them against A and B.
[[kernel]] void static_slices(
    device half* a [[buffer(0)]],
    device half* b [[buffer(1)]],
    device float* c [[buffer(2)]],
    constant Problem& p [[buffer(3)]]
) {
  matrix<half> A(a, dextents<int, 2>(p.K, p.M), array<int, 2>{1, p.lda});
  matrix<half> B(b, dextents<int, 2>(p.N, p.K), array<int, 2>{1, p.ldb});
  matrix<float> C(c, dextents<int, 2>(p.N, p.M), array<int, 2>{1, p.ldc});
  constexpr auto descriptor = matmul2d_descriptor(
      16, 32, dynamic_length_v<int>, false, false, false, matmul2d_descriptor::mode::multiply_accumulate
  );
  matmul2d<descriptor, execution_simdgroup> op;
  auto tC = C.slice(0, 0);
  auto acc = op.get_destination_cooperative_tensor<matrix<half>, matrix<half>, float>();
  for (ushort i = 0; i < acc.get_capacity(); ++i) {
    acc[i] = 0;
  }
  for (int k = 0; k < p.K; k += 32) {
    auto tA = A.slice<32, 16>(k, 0);
    auto tB = B.slice<32, 32>(0, k);
    op.run(tA, tB, acc);
  }
  acc.store(tC);
}

// A destination that nobody zeroed.
[[kernel]] void not_zeroed(
    device half* a [[buffer(0)]],
    device half* b [[buffer(1)]],
    device float* c [[buffer(2)]],
    constant Problem& p [[buffer(3)]]
) {
  matrix<half> A(a, dextents<int, 2>(p.K, p.M), array<int, 2>{1, p.lda});
  matrix<half> B(b, dextents<int, 2>(p.N, p.K), array<int, 2>{1, p.ldb});
  matrix<float> C(c, dextents<int, 2>(p.N, p.M), array<int, 2>{1, p.ldc});
  constexpr auto descriptor = matmul2d_descriptor(
      16, 32, dynamic_length_v<int>, false, false, false, matmul2d_descriptor::mode::multiply_accumulate
  );
  matmul2d<descriptor, execution_simdgroup> op;
  auto acc = op.get_destination_cooperative_tensor<matrix<half>, matrix<half>, float>();
  op.run(A, B, acc);
  acc.store(C);
}

// All three operands cooperative, filled by coordinates.
[[kernel]] void cooperative_operands(
    device half* a [[buffer(0)]],
    device half* b [[buffer(1)]],
    device float* c [[buffer(2)]],
    constant Problem& p [[buffer(3)]]
) {
  constexpr auto descriptor =
      matmul2d_descriptor(16, 32, 16, false, true, false, matmul2d_descriptor::mode::multiply_accumulate);
  matmul2d<descriptor, execution_simdgroup> op;
  auto left = op.get_left_input_cooperative_tensor<half, half, float>();
  auto right = op.get_right_input_cooperative_tensor<half, half, float>();
  auto acc = op.get_destination_cooperative_tensor<decltype(left), decltype(right), float>();
  for (ushort i = 0; i < acc.get_capacity(); ++i) {
    acc.set(i, 0);
  }
  for (int k0 = 0; k0 < p.K; k0 += 16) {
    for (ushort i = 0; i < left.get_capacity(); ++i) {
      const auto at = left.get_multidimensional_index(i); // k, m
      left.set(i, k0 + at[0] < p.K && at[1] < p.M ? a[at[1] * p.lda + k0 + at[0]] : half(0));
    }
    for (ushort i = 0; i < right.get_capacity(); ++i) {
      const auto at = right.get_multidimensional_index(i); // k, n
      right.set(i, k0 + at[0] < p.K && at[1] < p.N ? b[at[1] * p.ldb + k0 + at[0]] : half(0));
    }
    op.run(left, right, acc);
  }
  matrix<float> C(c, dextents<int, 2>(p.N, p.M), array<int, 2>{1, p.ldc});
  acc.store(C);
}

// Each thread a product of its own.
[[kernel]] void one_thread(
    device float* a [[buffer(0)]],
    device float* b [[buffer(1)]],
    device float* c [[buffer(2)]],
    constant Problem& p [[buffer(3)]],
    uint i [[thread_position_in_grid]]
) {
  matrix<float> A(a + i * 16 * p.K, dextents<int, 2>(p.K, 16));
  matrix<float> B(b, dextents<int, 2>(p.N, p.K), array<int, 2>{1, p.ldb});
  matrix<float> C(c + i * 16 * p.N, dextents<int, 2>(p.N, 16));
  constexpr auto descriptor = matmul2d_descriptor(16, 8, dynamic_length_v<int>);
  matmul2d<descriptor, execution_thread> op;
  op.run(A, B, C);
}

// Where elements of cooperative tensors are: out[lane][slot] = (row, column), -1 where a slot holds nothing.
template <typename Tensor>
void write_places(Tensor tensor, device int2* out, uint lane) {
  for (ushort i = 0; i < tensor.get_capacity(); ++i) {
    const auto at = tensor.get_multidimensional_index(i);
    out[lane * tensor.get_capacity() + i] = tensor.is_valid_element(i) ? int2(at[1], at[0]) : int2(-1);
  }
}

[[kernel]] void measured_layout(
    device int2* left_places [[buffer(0)]],
    device int2* right_places [[buffer(1)]],
    device int2* transposed_places [[buffer(2)]],
    device int2* destination_places [[buffer(3)]],
    uint lane [[thread_index_in_simdgroup]]
) {
  matmul2d<matmul2d_descriptor(16, 32, 16), execution_simdgroup> op;
  matmul2d<matmul2d_descriptor(16, 32, 16, false, true), execution_simdgroup> transposed;
  auto left = op.get_left_input_cooperative_tensor<half, half, float>();
  auto right = op.get_right_input_cooperative_tensor<half, half, float>();
  auto right_transposed = transposed.get_right_input_cooperative_tensor<half, half, float>();
  auto destination = op.get_destination_cooperative_tensor<decltype(left), decltype(right), float>();
  write_places(left, left_places, lane);
  write_places(right, right_places, lane);
  write_places(right_transposed, transposed_places, lane);
  write_places(destination, destination_places, lane);
}

[[kernel]] void opaque_layout(
    device int2* places [[buffer(0)]],
    constant uint& capacity [[buffer(1)]],
    uint thread_index [[thread_index_in_threadgroup]]
) {
  matmul2d<matmul2d_descriptor(64, 32), execution_simdgroups<2>> op;
  auto destination = op.get_destination_cooperative_tensor<matrix<half>, matrix<half>, float>();
  for (ushort i = 0; i < capacity; ++i) {
    const bool valid = i < destination.get_capacity() && destination.is_valid_element(i);
    const auto at = valid ? destination.get_multidimensional_index(i) : array<int, 2>{-1, -1};
    places[thread_index * capacity + i] = int2(at[1], at[0]);
  }
}

// softmax(A B^T) by rows, with reductions of cooperative tensors.
[[kernel]] void softmax_rows(
    device half* a [[buffer(0)]],
    device half* b [[buffer(1)]],
    device float* c [[buffer(2)]],
    constant Problem& p [[buffer(3)]]
) {
  matrix<half> A(a, dextents<int, 2>(p.K, p.M), array<int, 2>{1, p.lda});
  matrix<half> B(b, dextents<int, 2>(p.K, p.N), array<int, 2>{1, p.ldb});
  matrix<float> C(c, dextents<int, 2>(p.N, p.M), array<int, 2>{1, p.ldc});
  matmul2d<matmul2d_descriptor(32, 64, dynamic_length_v<int>, false, true), execution_simdgroup> op;
  auto scores = op.get_destination_cooperative_tensor<matrix<half>, matrix<half>, float>();
  op.run(A, B, scores);
  auto row_max = op.get_row_reduction_destination_cooperative_tensor<matrix<half>, matrix<half>, float>();
  auto row_sum = op.get_row_reduction_destination_cooperative_tensor<matrix<half>, matrix<half>, float>();
  reduce_rows(scores, row_max, reduction_operation::max, numeric_limits<float>::lowest());
  for (auto it = scores.begin(); it != scores.end(); ++it) {
    *it = precise::exp(*it - *row_max.map_iterator(it));
  }
  reduce_rows(scores, row_sum);
  for (auto it = scores.begin(); it != scores.end(); ++it) {
    *it /= *row_sum.map_iterator(it);
  }
  scores.store(C);
}

// max of each row without an identity, and of each column with one: out_rows[m], out_columns[n].
[[kernel]] void reduce_max(
    device half* a [[buffer(0)]],
    device half* b [[buffer(1)]],
    device float* out_rows [[buffer(2)]],
    device float* out_columns [[buffer(3)]],
    constant Problem& p [[buffer(4)]]
) {
  matrix<half> A(a, dextents<int, 2>(p.K, p.M), array<int, 2>{1, p.lda});
  matrix<half> B(b, dextents<int, 2>(p.K, p.N), array<int, 2>{1, p.ldb});
  matmul2d<matmul2d_descriptor(16, 32, dynamic_length_v<int>, false, true), execution_simdgroup> op;
  auto scores = op.get_destination_cooperative_tensor<matrix<half>, matrix<half>, float>();
  op.run(A, B, scores);
  auto rows = op.get_row_reduction_destination_cooperative_tensor<matrix<half>, matrix<half>, float>();
  auto columns = op.get_column_reduction_destination_cooperative_tensor<matrix<half>, matrix<half>, float>();
  reduce_rows(scores, rows, reduction_operation::max);
  reduce_columns(scores, columns, reduction_operation::max, numeric_limits<float>::lowest());
  simdgroup_barrier(mem_flags::mem_none);
  for (ushort i = 0; i < rows.get_capacity(); ++i) {
    if (rows.is_valid_element(i)) {
      out_rows[rows.get_multidimensional_index(i)[0]] = rows[i];
      simdgroup_barrier(mem_flags::mem_device);
    }
  }
  for (ushort i = 0; i < columns.get_capacity(); ++i) {
    if (columns.is_valid_element(i)) {
      out_columns[columns.get_multidimensional_index(i)[0]] = columns[i];
      simdgroup_barrier(mem_flags::mem_device);
    }
  }
}

// (A B) C with the first product as left input of the second; says whether it was compatible.
[[kernel]] void chained(
    device float* a [[buffer(0)]],
    device float* b [[buffer(1)]],
    device float* c [[buffer(2)]],
    device float* out [[buffer(3)]],
    device int* compatible [[buffer(4)]],
    uint lane [[thread_index_in_simdgroup]]
) {
  matrix<float> A(a, dextents<int, 2>(16, 16)), B(b, dextents<int, 2>(32, 16));
  matrix<float> C(c, dextents<int, 2>(16, 32)), Out(out, dextents<int, 2>(16, 16));
  matmul2d<matmul2d_descriptor(16, 32, 16), execution_simdgroup> first;
  matmul2d<matmul2d_descriptor(16, 16, 32), execution_simdgroup> second;
  auto product = first.get_destination_cooperative_tensor<matrix<float>, matrix<float>, float>();
  first.run(A, B, product);
  if (lane == 0) {
    *compatible = second.is_compatible_as_left_input<float, float, float>(product);
  }
  auto left = second.get_left_input_cooperative_tensor<float, float, float>(product);
  auto result = second.get_destination_cooperative_tensor<decltype(left), matrix<float>, float>();
  second.run(left, C, result);
  result.store(Out);
}

// Only simdgroup 0 gets to run().
[[kernel]] void subset(
    device half* a [[buffer(0)]],
    device half* b [[buffer(1)]],
    device float* c [[buffer(2)]],
    constant Problem& p [[buffer(3)]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]
) {
  matrix<half> A(a, dextents<int, 2>(p.K, p.M)), B(b, dextents<int, 2>(p.N, p.K));
  matrix<float> C(c, dextents<int, 2>(p.N, p.M));
  matmul2d<matmul2d_descriptor(32, 32), execution_simdgroups<2>> op;
  if (simdgroup == 0) {
    op.run(A, B, C);
  }
}

// Half of the lanes get to run().
[[kernel]] void some_lanes(
    device half* a [[buffer(0)]],
    device half* b [[buffer(1)]],
    device float* c [[buffer(2)]],
    constant Problem& p [[buffer(3)]],
    uint lane [[thread_index_in_simdgroup]]
) {
  matrix<half> A(a, dextents<int, 2>(p.K, p.M)), B(b, dextents<int, 2>(p.N, p.K));
  matrix<float> C(c, dextents<int, 2>(p.N, p.M));
  matmul2d<matmul2d_descriptor(32, 32), execution_simdgroup> op;
  if (lane < 16) {
    op.run(A, B, C);
  }
}

// A bias of one row for all rows, by a row stride of 0.
[[kernel]] void broadcast_bias(
    device half* a [[buffer(0)]],
    device half* b [[buffer(1)]],
    device float* c [[buffer(2)]],
    constant Problem& p [[buffer(3)]],
    device float* bias [[buffer(4)]]
) {
  matrix<half> A(a, dextents<int, 2>(p.K, p.M)), B(b, dextents<int, 2>(p.N, p.K));
  matrix<float> C(c, dextents<int, 2>(p.N, p.M));
  matrix<float> Bias(bias, dextents<int, 2>(p.N, p.M), array<int, 2>{1, 0});
  constexpr auto descriptor = matmul2d_descriptor(
      32, 32, dynamic_length_v<int>, false, false, false, matmul2d_descriptor::mode::multiply_accumulate
  );
  matmul2d<descriptor, execution_simdgroups<2>> op;
  auto acc = op.get_destination_cooperative_tensor<matrix<half>, matrix<half>, float>();
  acc.load(Bias);
  op.run(A, B, acc);
  acc.store(C);
}

// Tensors that the host makes.
[[kernel]] void handles(
    tensor<device half, dextents<int, 2>> A [[buffer(0)]],
    tensor<device half, dextents<int, 2>> B [[buffer(1)]],
    tensor<device float, dextents<int, 2>> C [[buffer(2)]],
    uint2 tile [[threadgroup_position_in_grid]]
) {
  matmul2d<matmul2d_descriptor(32, 32), execution_simdgroups<2>> op;
  auto tA = A.slice(0, tile.y * 32);
  auto tB = B.slice(tile.x * 32, 0);
  auto tC = C.slice(tile.x * 32, tile.y * 32);
  static_assert(has_tensor_offset_v<decltype(tA)> && !has_tensor_offset_v<decltype(A)>);
  op.run(tA, tB, tC);
}

// Operands staged in threadgroup memory, a static 32 of K at a time, the tail zeroed.
[[kernel]] void staged(
    device half* a [[buffer(0)]],
    device half* b [[buffer(1)]],
    device float* c [[buffer(2)]],
    constant Problem& p [[buffer(3)]],
    uint thread_index [[thread_index_in_threadgroup]]
) {
  constexpr int pitch = 40;
  threadgroup half left[32 * pitch];
  threadgroup half right[32 * pitch];
  auto A = tensor(&left[0], extents<int, 32, 32>(), array<int, 2>{1, pitch});
  auto B = tensor(&right[0], extents<int, 32, 32>(), array<int, 2>{1, pitch});
  constexpr auto descriptor =
      matmul2d_descriptor(32, 32, 32, false, false, false, matmul2d_descriptor::mode::multiply_accumulate);
  matmul2d<descriptor, execution_simdgroups<2>> op;
  auto acc = op.get_destination_cooperative_tensor<decltype(A), decltype(B), float>();
  for (ushort i = 0; i < acc.get_capacity(); ++i) {
    acc[i] = 0;
  }
  for (int k0 = 0; k0 < p.K; k0 += 32) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int i = thread_index; i < 32 * 32; i += 64) {
      const int row = i / 32, col = i % 32;
      left[row * pitch + col] = row < p.M && k0 + col < p.K ? a[row * p.lda + k0 + col] : half(0);
      right[row * pitch + col] = k0 + row < p.K && col < p.N ? b[(k0 + row) * p.ldb + col] : half(0);
    }
#ifndef NO_BARRIER
    threadgroup_barrier(mem_flags::mem_threadgroup);
#endif
    op.run(A, B, acc);
  }
  matrix<float> C(c, dextents<int, 2>(p.N, p.M), array<int, 2>{1, p.ldc});
  acc.store(C);
}
