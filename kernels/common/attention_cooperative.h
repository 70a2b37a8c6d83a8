#pragma once

// clang-format off: the types first that MPP builds on
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
// clang-format on

#include "kernels/common/attention_rows.h"
#include "kernels/common/cooperative_slots.h"

// What the TensorOps kernels of attention are made of. A threadgroup has a tile of rows and meets the others in blocks
// of 32, as in attention_tiles.h. Its STRIPS strips have 16 rows, each the work of PARTS simdgroups: each part sums its
// share of the dot products, which are then added in order, and has every PARTS-th 32 columns of the sums.
//
// All operands are cooperative tensors of 16 x 32 x 16 products on one simdgroup, the shape that MLX's kernels use, and
// are filled from device memory by what their slots say. Scores stay in their destination; weights go from there to the
// left input slot by slot where both lie alike, and through threadgroup memory where they do not.
template <typename ELEMENT, int HEAD, int STRIPS, int PARTS>
struct CooperativeTile {
  using T = ELEMENT;
  static constant constexpr int head = HEAD;
  static constant constexpr int parts = PARTS;
  static constant constexpr int strip = 16;
  static constant constexpr int rows = STRIPS * strip;
  static constant constexpr int block = 32;
  static constant constexpr int simdgroups = STRIPS * PARTS;
  static constant constexpr int sums = HEAD / 32 / PARTS;
  static_assert(sums * 32 * PARTS == HEAD, "columns are whole products");

  // Of a simdgroup, first its part of the dot products, then its weights; in floats.
  static constant constexpr int pitch = block + 16 / sizeof(T);
  static constant constexpr int weights_size = strip * pitch * int(sizeof(T)) / 4;
  static constant constexpr int products_size = strip * block;
  static constant constexpr int region = weights_size > products_size ? weights_size : products_size;
  static constant constexpr int size = simdgroups * (region + strip) / 4;
  static_assert(size * 16 <= 32768, "threadgroup memory of every Apple GPU");
};

constexpr mpp::tensor_ops::matmul2d_descriptor attention_product(bool transposed_right) {
  return mpp::tensor_ops::matmul2d_descriptor(
      16, 32, 16, false, transposed_right, true, mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate
  );
}

// Rows by others, and weights by others.
using DotProduct = mpp::tensor_ops::matmul2d<attention_product(true), metal::execution_simdgroup>;
using SumProduct = mpp::tensor_ops::matmul2d<attention_product(false), metal::execution_simdgroup>;

template <typename Tile>
struct CooperativeTeam {
  int lane;
  int strip;
  int part;
  bool alike; // dot products, left inputs and sums have the same elements in corresponding slots
  threadgroup typename Tile::T* weights; // of the simdgroup
  threadgroup float* products;           // likewise
  threadgroup float* strip_products;     // of the strip's first part
  threadgroup float* row_values;         // of the simdgroup

  int first_row() const thread { // of the tile
    return strip * Tile::strip;
  }
};

// Whether the slots of destinations of both products, and of the left input, are the same elements.
template <typename T, typename Products>
inline bool lie_alike(thread Products& products) {
  SumProduct op;
  auto left = op.template get_left_input_cooperative_tensor<T, T, float>();
  auto right = op.template get_right_input_cooperative_tensor<T, T, float>();
  auto sums = op.template get_destination_cooperative_tensor<
      metal::remove_addrspace_t<decltype(left)>,
      metal::remove_addrspace_t<decltype(right)>,
      float>();
  bool alike = left.get_capacity() == cooperative_slots / 2;
#pragma clang loop unroll(full)
  for (ushort i = 0; i < cooperative_slots; ++i) {
    const auto at = products.get_multidimensional_index(i);
    const auto in_sums = sums.get_multidimensional_index(i);
    const ushort j = i % (cooperative_slots / 2);
    const auto in_left = left.get_multidimensional_index(j);
    const int half = i / (cooperative_slots / 2);
    alike = alike && products.is_valid_element(i) && sums.is_valid_element(i) && left.is_valid_element(j);
    alike = alike && at[0] == in_sums[0] && at[1] == in_sums[1];
    alike = alike && at[0] == in_left[0] + half * 16 && at[1] == in_left[1];
  }
  return metal::simd_all(alike);
}

template <typename Tile, typename Products>
inline CooperativeTeam<Tile> cooperative_team(
    threadgroup float4* memory, uint simdgroup, uint lane, thread Products& products
) {
  threadgroup float* floats = reinterpret_cast<threadgroup float*>(memory);
  CooperativeTeam<Tile> team;
  team.lane = int(lane);
  team.strip = int(simdgroup) / Tile::parts;
  team.part = int(simdgroup) % Tile::parts;
  team.alike = lie_alike<typename Tile::T>(products);
  team.products = floats + int(simdgroup) * Tile::region;
  team.strip_products = floats + team.strip * Tile::parts * Tile::region;
  team.weights = reinterpret_cast<threadgroup typename Tile::T*>(team.products);
  team.row_values = floats + Tile::simdgroups * Tile::region + int(simdgroup) * Tile::strip;
  return team;
}

// Dot products of the strip's rows and a block of others.
template <typename Tile, typename Products>
inline void multiply_rows(
    thread Products& products,
    thread const AttentionRows<typename Tile::T>& rows,
    int row,
    thread const AttentionRows<typename Tile::T>& others,
    int other,
    thread const CooperativeTeam<Tile>& team
) {
  using T = typename Tile::T;
  DotProduct op;
  auto left = op.template get_left_input_cooperative_tensor<T, T, float>();
  auto right = op.template get_right_input_cooperative_tensor<T, T, float>();
#pragma clang loop unroll(full)
  for (ushort i = 0; i < products.get_capacity(); ++i) {
    products[i] = 0.0f;
  }
  for (int d = team.part * 16; d < rows.columns; d += Tile::parts * 16) {
    fill_cooperative<T>(left, rows, row, d);
    fill_cooperative<T>(right, others, other, d);
    op.run(left, right, products);
  }
  if (Tile::parts > 1) {
#pragma clang loop unroll(full)
    for (ushort i = 0; i < cooperative_slots; ++i) {
      team.products[i * 32 + team.lane] = products[i];
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
#pragma clang loop unroll(full)
    for (ushort i = 0; i < cooperative_slots; ++i) {
      float sum = 0.0f;
#pragma clang loop unroll(full)
      for (int p = 0; p < Tile::parts; ++p) {
        sum += team.strip_products[p * Tile::region + i * 32 + team.lane];
      }
      products[i] = sum;
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  }
}

// Rows of which what is no number reads as zero, and is told.
template <typename T>
struct NumberRows {
  AttentionRows<T> rows;
  thread bool* all_numbers;

  float4 load_four(int row, int column) const thread {
    float4 values = rows.load_four(row, column);
#pragma clang loop unroll(full)
    for (int i = 0; i < 4; ++i) {
      if (!is_number(values[i])) {
        values[i] = 0.0f;
        *all_numbers = false;
      }
    }
    return values;
  }

  float load_one(int row, int column) const thread {
    const float value = float(rows.load_one(row, column));
    if (!is_number(value)) {
      *all_numbers = false;
      return 0.0f;
    }
    return value;
  }
};

// Puts weights, by the slots of `products`, where the whole simdgroup reads them.
template <typename Tile, typename Products>
inline void write_weights(
    thread const float (&weights)[cooperative_slots],
    thread Products& products,
    thread const CooperativeTeam<Tile>& team
) {
#pragma clang loop unroll(full)
  for (ushort i = 0; i < cooperative_slots; ++i) {
    if (products.is_valid_element(i)) {
      const auto at = products.get_multidimensional_index(i);
      team.weights[at[1] * Tile::pitch + at[0]] = typename Tile::T(weights[i]);
    }
  }
  metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
}

// Sixteen columns of the weights as a left input.
template <typename Tile, typename Left>
inline void feed_weights(
    thread Left& left,
    thread const float (&weights)[cooperative_slots],
    int half,
    thread const CooperativeTeam<Tile>& team
) {
  using T = typename Tile::T;
#pragma clang loop unroll(full)
  for (ushort i = 0; i < left.get_capacity(); ++i) {
    if (team.alike) {
      left[i] = T(weights[half * (cooperative_slots / 2) + i]);
    } else if (left.is_valid_element(i)) {
      const auto at = left.get_multidimensional_index(i);
      left[i] = team.weights[at[1] * Tile::pitch + half * 16 + at[0]];
    }
  }
}

// What is not a number among the others counts where its weight is not 0 and nowhere else: see attention_tiles.h.
template <typename Tile, typename Sums>
inline void add_exceptions(
    thread Sums& sums,
    thread const AttentionRows<typename Tile::T>& others,
    int other,
    int column,
    int half,
    thread const CooperativeTeam<Tile>& team
) {
  for (ushort i = 0; i < cooperative_slots; ++i) {
    if (sums.is_valid_element(i)) {
      const auto at = sums.get_multidimensional_index(i);
      for (int k = half * 16; k < half * 16 + 16; ++k) {
        const float value = float(others.load_one(other + k, column + at[0]));
        const float weight = float(team.weights[at[1] * Tile::pitch + k]);
        if (weight != 0.0f && !is_number(value)) {
          sums[i] += weight * value;
        }
      }
    }
  }
}

// sums += weights x block of others, from `column` on; weights by the slots of `products`.
template <typename Tile, typename Products>
inline void add_products(
    thread float (&sums)[Tile::sums][cooperative_slots],
    thread const float (&weights)[cooperative_slots],
    thread Products& products,
    thread const AttentionRows<typename Tile::T>& others,
    int other,
    int column,
    thread const CooperativeTeam<Tile>& team
) {
  using T = typename Tile::T;
  SumProduct op;
  auto low = op.template get_left_input_cooperative_tensor<T, T, float>();
  auto high = op.template get_left_input_cooperative_tensor<T, T, float>();
  auto right = op.template get_right_input_cooperative_tensor<T, T, float>();
  auto acc = op.template get_destination_cooperative_tensor<
      metal::remove_addrspace_t<decltype(low)>,
      metal::remove_addrspace_t<decltype(right)>,
      float>();
  bool written = !team.alike;
  if (written) {
    write_weights<Tile>(weights, products, team);
  }
  feed_weights<Tile>(low, weights, 0, team);
  feed_weights<Tile>(high, weights, 1, team);

#pragma clang loop unroll(full)
  for (int t = 0; t < Tile::sums; ++t) {
    const int first = column + (t * Tile::parts + team.part) * 32;
    if (first < others.columns) {
      bool numbers[2] = {true, true};
      set_slots(acc, sums[t]);
      fill_cooperative<T>(right, NumberRows<T>{others, &numbers[0]}, other, first);
      op.run(low, right, acc);
      fill_cooperative<T>(right, NumberRows<T>{others, &numbers[1]}, other + 16, first);
      op.run(high, right, acc);
      if (!metal::simd_all(numbers[0] && numbers[1])) {
        if (!written) {
          write_weights<Tile>(weights, products, team);
          written = true;
        }
        add_exceptions<Tile>(acc, others, other, first, 0, team);
        add_exceptions<Tile>(acc, others, other, first, 1, team);
      }
#pragma clang loop unroll(full)
      for (ushort i = 0; i < cooperative_slots; ++i) {
        sums[t][i] = acc[i];
      }
    }
  }
  metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
}

template <typename Tile>
inline void clear_sums(thread float (&sums)[Tile::sums][cooperative_slots]) {
#pragma clang loop unroll(full)
  for (int t = 0; t < Tile::sums; ++t) {
#pragma clang loop unroll(full)
    for (ushort i = 0; i < cooperative_slots; ++i) {
      sums[t][i] = 0.0f;
    }
  }
}

// Turns values of rows, by the slots of `products`, into values of the same rows by the slots of the sums.
template <typename Tile, typename Products>
inline void move_to_sums(
    thread float (&values)[cooperative_slots], thread Products& products, thread const CooperativeTeam<Tile>& team
) {
  if (team.alike) {
    return;
  }
  using T = typename Tile::T;
  SumProduct op;
  auto left = op.template get_left_input_cooperative_tensor<T, T, float>();
  auto right = op.template get_right_input_cooperative_tensor<T, T, float>();
  auto sums = op.template get_destination_cooperative_tensor<
      metal::remove_addrspace_t<decltype(left)>,
      metal::remove_addrspace_t<decltype(right)>,
      float>();
#pragma clang loop unroll(full)
  for (ushort i = 0; i < cooperative_slots; ++i) {
    const auto at = products.get_multidimensional_index(i);
    if (products.is_valid_element(i) && at[0] == 0) {
      team.row_values[at[1]] = values[i];
    }
  }
  metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
#pragma clang loop unroll(full)
  for (ushort i = 0; i < cooperative_slots; ++i) {
    values[i] = sums.is_valid_element(i) ? team.row_values[sums.get_multidimensional_index(i)[1]] : 0.0f;
  }
  metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
}

// Writes the strip's rows from `row` on, of `rows` rows of `columns` columns, each element times its slot's factor.
template <typename Tile>
inline void store_sums(
    device typename Tile::T* out,
    int row,
    int rows,
    int column,
    int columns,
    thread const float (&sums)[Tile::sums][cooperative_slots],
    thread const float (&factors)[cooperative_slots],
    thread const CooperativeTeam<Tile>& team
) {
  using T = typename Tile::T;
  SumProduct op;
  auto left = op.template get_left_input_cooperative_tensor<T, T, float>();
  auto right = op.template get_right_input_cooperative_tensor<T, T, float>();
  auto acc = op.template get_destination_cooperative_tensor<
      metal::remove_addrspace_t<decltype(left)>,
      metal::remove_addrspace_t<decltype(right)>,
      float>();
#pragma clang loop unroll(full)
  for (int t = 0; t < Tile::sums; ++t) {
    const int first = column + (t * Tile::parts + team.part) * 32;
#pragma clang loop unroll(full)
    for (ushort i = 0; i < cooperative_slots; i += 4) {
      const auto start = acc.get_multidimensional_index(i);
      if (columns % 4 == 0 && is_run_of_four(acc, i)) {
        if (row + start[1] < rows && first + start[0] < columns) {
          device T* p = out + (int64_t(row + start[1]) * columns + first + start[0]);
          store4(
              p,
              from_float4<T>(
                  float4(sums[t][i], sums[t][i + 1], sums[t][i + 2], sums[t][i + 3]) *
                  float4(factors[i], factors[i + 1], factors[i + 2], factors[i + 3])
              )
          );
        }
        continue;
      }
#pragma clang loop unroll(full)
      for (ushort j = i; j < i + 4; ++j) {
        const auto at = acc.get_multidimensional_index(j);
        if (acc.is_valid_element(j) && row + at[1] < rows && first + at[0] < columns) {
          out[int64_t(row + at[1]) * columns + first + at[0]] = T(sums[t][j] * factors[j]);
        }
      }
    }
  }
}
