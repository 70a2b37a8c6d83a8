#pragma once

// clang-format off: the types first that simdgroup_matrix builds on
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
// clang-format on

#include "kernels/common/attention_rows.h"
#include "kernels/common/fragments.h"

// What the portable kernels of attention are made of. A threadgroup has a tile of rows (queries; in the gradients of
// keys and values, keys) and meets the others in blocks of 32. It is STRIPS strips of 8 rows, each strip the work of
// PARTS simdgroups that share its scores and have each its part of the columns of its sums. Head dimensions pass
// through threadgroup memory in chunks, so that their number is bound by the registers that hold the sums alone.
//
// Nothing is assumed of how a simdgroup_matrix lies in its lanes: scores reach their lanes by way of threadgroup
// memory, where lane i has row i / 4 of the strip and columns 8 (i % 4) to 8 (i % 4) + 7.
template <typename ELEMENT, int HEAD, int STRIPS, int PARTS>
struct AttentionTile {
  using T = ELEMENT;
  static constant constexpr int parts = PARTS;
  static constant constexpr int rows = STRIPS * fragment_size;
  static constant constexpr int block = 32;
  static constant constexpr int simdgroups = STRIPS * PARTS;
  static constant constexpr int threads = simdgroups * 32;

  // The least number of equal chunks of 288 bytes at most: a row of 72 float32, or of 128 float16.
  static constant constexpr int head = HEAD;
  static constant constexpr int chunks = (HEAD * int(sizeof(T)) + 287) / 288;
  static constant constexpr int chunk = HEAD / chunks;
  static constant constexpr int fragments = chunk / fragment_size / PARTS; // of a simdgroup, in one chunk
  static constant constexpr int score_fragments = block / fragment_size / PARTS;
  static_assert(chunk * chunks == HEAD && chunk % (fragment_size * PARTS) == 0, "chunks are whole fragments");

  // Rows are kept whole where they are small, so that they are staged once.
  static constant constexpr int padding = 16 / sizeof(T);
  static constant constexpr bool can_stay = rows * (HEAD + padding) * int(sizeof(T)) <= 10752;
  static constant constexpr int row_pitch = (can_stay ? HEAD : chunk) + padding;
  static constant constexpr int pitch = chunk + padding;
  static constant constexpr int weight_pitch = block + padding;
  static constant constexpr int score_pitch = block + 4;

  // Bytes; all are multiples of 16.
  static constant constexpr int rows_size = rows * row_pitch * int(sizeof(T));
  static constant constexpr int others_size = block * pitch * int(sizeof(T));
  static constant constexpr int weights_size = rows * weight_pitch * int(sizeof(T));
  static constant constexpr int scores_size = rows * score_pitch * int(sizeof(float));
  static constant constexpr int exchange_size = simdgroups * 64 * int(sizeof(float));
  static constant constexpr int flags_size = simdgroups * int(sizeof(uint));
  static constant constexpr int size =
      (rows_size + others_size + weights_size + scores_size + exchange_size + flags_size + 15) / 16;
  static_assert(size * 16 <= 32768, "threadgroup memory of every Apple GPU");
  static_assert(simdgroups * 8 * score_pitch * int(sizeof(float)) <= rows_size + others_size, "strips of the outputs");
};

// Where a thread stands in its tile, and the tile's memory.
template <typename Tile>
struct AttentionTeam {
  using T = typename Tile::T;
  int index;
  int simdgroup;
  int lane;
  int strip;
  int part;
  threadgroup T* rows;
  threadgroup T* others;
  threadgroup T* weights;      // of the tile, rows by others
  threadgroup float* scores;   // of the strip
  threadgroup float* exchange; // 8x8, of the simdgroup
  threadgroup float* output;   // 8 rows of the simdgroup, where rows and others were
  threadgroup uint* flags;

  int own_row() const thread { // of the tile
    return strip * fragment_size + lane / 4;
  }
  int own_column() const thread {
    return lane % 4 * 8;
  }
  // Orders what the simdgroups of a strip share.
  void strip_barrier() const thread {
    if (Tile::parts == 1) {
      metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
    } else {
      metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    }
  }
};

template <typename Tile>
inline AttentionTeam<Tile> attention_team(threadgroup float4* memory, uint index, uint simdgroup, uint lane) {
  using T = typename Tile::T;
  threadgroup uchar* bytes = reinterpret_cast<threadgroup uchar*>(memory);
  AttentionTeam<Tile> team;
  team.index = int(index);
  team.simdgroup = int(simdgroup);
  team.lane = int(lane);
  team.strip = int(simdgroup) / Tile::parts;
  team.part = int(simdgroup) % Tile::parts;
  team.rows = reinterpret_cast<threadgroup T*>(bytes);
  team.output = reinterpret_cast<threadgroup float*>(bytes) + team.simdgroup * fragment_size * Tile::score_pitch;
  bytes += Tile::rows_size;
  team.others = reinterpret_cast<threadgroup T*>(bytes);
  bytes += Tile::others_size;
  team.weights = reinterpret_cast<threadgroup T*>(bytes);
  bytes += Tile::weights_size;
  team.scores = reinterpret_cast<threadgroup float*>(bytes) + team.strip * fragment_size * Tile::score_pitch;
  bytes += Tile::scores_size;
  team.exchange = reinterpret_cast<threadgroup float*>(bytes) + team.simdgroup * 64;
  team.flags = reinterpret_cast<threadgroup uint*>(bytes + Tile::exchange_size);
  return team;
}

// Fills ROWS x COLUMNS elements from the source's (row, column) on; gives whether all that this thread saw are numbers.
template <typename Tile, int ROWS, int COLUMNS>
inline bool stage_rows(
    threadgroup typename Tile::T* block,
    int pitch,
    thread const AttentionRows<typename Tile::T>& source,
    int row,
    int column,
    thread const AttentionTeam<Tile>& team
) {
  using T = typename Tile::T;
  constexpr int quads = COLUMNS / 4;
  bool numbers = true;
  for (int i = team.index; i < ROWS * quads; i += Tile::threads) {
    const int block_row = i / quads;
    const int block_column = i % quads * 4;
    const metal::vec<T, 4> values = source.load(row + block_row, column + block_column);
    numbers = numbers && is_number(values[0]) && is_number(values[1]) && is_number(values[2]) && is_number(values[3]);
    *reinterpret_cast<threadgroup metal::vec<T, 4>*>(block + (block_row * pitch + block_column)) = values;
  }
  return numbers;
}

// Dot products of the tile's rows and a block of others; STAYED says that the rows are staged already.
template <typename Tile, bool STAYED>
inline void multiply_rows(
    thread metal::simdgroup_float8x8 (&products)[Tile::score_fragments],
    thread const AttentionRows<typename Tile::T>& rows,
    int row,
    thread const AttentionRows<typename Tile::T>& others,
    int other,
    thread const AttentionTeam<Tile>& team
) {
  using T = typename Tile::T;
#pragma clang loop unroll(full)
  for (int j = 0; j < Tile::score_fragments; ++j) {
    products[j] = metal::make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
  for (int d = 0; d < rows.columns; d += Tile::chunk) {
    if (!STAYED) {
      stage_rows<Tile, Tile::rows, Tile::chunk>(team.rows, Tile::row_pitch, rows, row, d, team);
    }
    stage_rows<Tile, Tile::block, Tile::chunk>(team.others, Tile::pitch, others, other, d, team);
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    const int first = STAYED ? d : 0;
#pragma clang loop unroll(full)
    for (int k = 0; k < Tile::chunk; k += fragment_size) {
      metal::simdgroup_matrix<T, 8, 8> a =
          load_fragment<T, false>(team.rows, Tile::row_pitch, team.strip * fragment_size, first + k);
#pragma clang loop unroll(full)
      for (int j = 0; j < Tile::score_fragments; ++j) {
        const int column = (team.part * Tile::score_fragments + j) * fragment_size;
        metal::simdgroup_matrix<T, 8, 8> b = load_fragment<T, true>(team.others, Tile::pitch, k, column);
        metal::simdgroup_multiply_accumulate(products[j], a, b, products[j]);
      }
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  }
}

// Hands each lane the eight products that are its own.
template <typename Tile>
inline void read_products(
    thread float (&own)[8],
    thread metal::simdgroup_float8x8 (&products)[Tile::score_fragments],
    thread const AttentionTeam<Tile>& team
) {
#pragma clang loop unroll(full)
  for (int j = 0; j < Tile::score_fragments; ++j) {
    const int column = (team.part * Tile::score_fragments + j) * fragment_size;
    metal::simdgroup_store(products[j], team.scores + column, Tile::score_pitch);
  }
  team.strip_barrier();
  threadgroup const float* p = team.scores + (team.lane / 4 * Tile::score_pitch + team.own_column());
#pragma clang loop unroll(full)
  for (int j = 0; j < 8; ++j) {
    own[j] = p[j];
  }
  team.strip_barrier();
}

// Rounds weights to T where add_products takes them from. The barrier is there.
template <typename Tile>
inline void write_weights(thread const float (&own)[8], thread const AttentionTeam<Tile>& team) {
  using T = typename Tile::T;
  if (team.part == 0) {
    threadgroup T* p = team.weights + (team.own_row() * Tile::weight_pitch + team.own_column());
#pragma clang loop unroll(full)
    for (int j = 0; j < 8; ++j) {
      p[j] = T(own[j]);
    }
  }
}

template <typename Tile>
struct AttentionSums {
  metal::simdgroup_float8x8 fragments[Tile::chunks * Tile::fragments];
};

template <typename Tile>
inline void clear_sums(thread AttentionSums<Tile>& sums) {
#pragma clang loop unroll(full)
  for (int j = 0; j < Tile::chunks * Tile::fragments; ++j) {
    sums.fragments[j] = metal::make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
}

// Multiplies each row of the sums by the factor that the lanes of the row hold.
template <typename Tile>
inline void scale_sums(thread AttentionSums<Tile>& sums, float factor, thread const AttentionTeam<Tile>& team) {
  const int column = team.lane % 4 * 2;
  threadgroup float* p = team.exchange + (team.lane / 4 * fragment_size + column);
  p[0] = factor;
  p[1] = factor;
  metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
  metal::simdgroup_matrix<float, 8, 8> factors;
  metal::simdgroup_load(factors, team.exchange, fragment_size);
  metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
#pragma clang loop unroll(full)
  for (int j = 0; j < Tile::chunks * Tile::fragments; ++j) {
    sums.fragments[j].thread_elements()[0] *= factors.thread_elements()[0];
    sums.fragments[j].thread_elements()[1] *= factors.thread_elements()[1];
  }
}

// What is not a number among the staged others counts where its weight is not 0 and nowhere else: a product of matrices
// would spread it, 0 x NaN being NaN. Adds these elements on their own and puts zeros in their place.
template <typename Tile>
inline void add_exceptions(
    thread metal::simdgroup_float8x8 (&fragments)[Tile::chunks * Tile::fragments],
    int chunk,
    thread const AttentionTeam<Tile>& team
) {
  using T = typename Tile::T;
  threadgroup const T* weights = team.weights + team.own_row() * Tile::weight_pitch;
  const int own_column = team.lane % 4 * 2;
#pragma clang loop unroll(full)
  for (int j = 0; j < Tile::fragments; ++j) {
    const int column = (team.part * Tile::fragments + j) * fragment_size + own_column;
    float2 sum = float2(0.0f);
    for (int k = 0; k < Tile::block; ++k) {
      const float weight = float(weights[k]);
      for (int i = 0; i < 2; ++i) {
        const T value = team.others[k * Tile::pitch + column + i];
        sum[i] += weight != 0.0f && !is_number(value) ? weight * float(value) : 0.0f;
      }
    }
    threadgroup float* p = team.exchange + (team.lane / 4 * fragment_size + own_column);
    p[0] = sum[0];
    p[1] = sum[1];
    metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
    metal::simdgroup_matrix<float, 8, 8> addend;
    metal::simdgroup_load(addend, team.exchange, fragment_size);
    metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
    fragments[chunk * Tile::fragments + j].thread_elements()[0] += addend.thread_elements()[0];
    fragments[chunk * Tile::fragments + j].thread_elements()[1] += addend.thread_elements()[1];
  }
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  for (int i = team.index; i < Tile::block * Tile::chunk; i += Tile::threads) {
    threadgroup T* p = team.others + (i / Tile::chunk * Tile::pitch + i % Tile::chunk);
    *p = is_number(*p) ? *p : T(0.0f);
  }
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
}

// sums += weights x block of others, columns from `column` on.
template <typename Tile>
inline void add_products(
    thread AttentionSums<Tile>& sums,
    thread const AttentionRows<typename Tile::T>& others,
    int other,
    int column,
    thread const AttentionTeam<Tile>& team
) {
  using T = typename Tile::T;
#pragma clang loop unroll(full)
  for (int c = 0; c < Tile::chunks; ++c) {
    if (column + c * Tile::chunk < others.columns) {
      const bool numbers = stage_rows<Tile, Tile::block, Tile::chunk>(
          team.others, Tile::pitch, others, other, column + c * Tile::chunk, team
      );
      const bool exceptions = !metal::simd_all(numbers);
      if (team.lane == 0) {
        team.flags[team.simdgroup] = exceptions ? 1u : 0u;
      }
      metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
      uint any = 0u;
      for (int s = 0; s < Tile::simdgroups; ++s) {
        any |= team.flags[s];
      }
      if (any != 0u) {
        add_exceptions<Tile>(sums.fragments, c, team);
      }
#pragma clang loop unroll(full)
      for (int k = 0; k < Tile::block; k += fragment_size) {
        metal::simdgroup_matrix<T, 8, 8> a =
            load_fragment<T, false>(team.weights, Tile::weight_pitch, team.strip * fragment_size, k);
#pragma clang loop unroll(full)
        for (int j = 0; j < Tile::fragments; ++j) {
          const int at = (team.part * Tile::fragments + j) * fragment_size;
          metal::simdgroup_matrix<T, 8, 8> b = load_fragment<T, false>(team.others, Tile::pitch, k, at);
          metal::simdgroup_multiply_accumulate(
              sums.fragments[c * Tile::fragments + j], a, b, sums.fragments[c * Tile::fragments + j]
          );
        }
      }
      metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    }
  }
}

// Writes the tile's rows from `row` on, of `rows` rows of `columns` columns, each times the factor that its lanes hold.
template <typename Tile>
inline void store_sums(
    device typename Tile::T* out,
    int row,
    int rows,
    int column,
    int columns,
    thread AttentionSums<Tile>& sums,
    float factor,
    thread const AttentionTeam<Tile>& team
) {
  using T = typename Tile::T;
  constexpr int width = 4; // fragments at a time
  const int own_row = row + team.own_row();
#pragma clang loop unroll(full)
  for (int c = 0; c < Tile::chunks; ++c) {
#pragma clang loop unroll(full)
    for (int first = 0; first < Tile::fragments; first += width) {
      const int count = metal::min(width, Tile::fragments - first);
#pragma clang loop unroll(full)
      for (int j = 0; j < count; ++j) {
        metal::simdgroup_store(
            sums.fragments[c * Tile::fragments + first + j], team.output + j * fragment_size, Tile::score_pitch
        );
      }
      metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
      for (int quad = team.lane % 4; quad < count * 2; quad += 4) {
        const int at = column + c * Tile::chunk + (team.part * Tile::fragments + first) * fragment_size + quad * 4;
        if (own_row < rows && at < columns) {
          const float4 values = *reinterpret_cast<threadgroup const float4*>(
              team.output + (team.lane / 4 * Tile::score_pitch + quad * 4)
          );
          device T* p = out + (int64_t(own_row) * columns + at);
          const metal::vec<T, 4> rounded = from_float4<T>(values * factor);
          if (columns % 4 == 0) {
            store4(p, rounded);
          } else {
            store4(p, rounded, columns - at);
          }
        }
      }
      metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
    }
  }
}
