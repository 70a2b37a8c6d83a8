#pragma once

#include "../msl/vector.h"
#include "../runtime/machine.h"

namespace emu {

EMU_RUNTIME_BEGIN

struct Place {
  int row;
  int col;
  bool valid;
};

// One 16x16 fragment over the 32 lanes of a simdgroup, as measured on an M5: a lane holds 4 neighbours in each of
// two rows, 8 apart. Slot 0 to 7 of lane `lane`.
constexpr Place fragment_place(int lane, int slot) {
  const int quad = lane >> 2;
  const int row = ((quad & 4) | (lane >> 1 & 3)) + (slot >> 2) * 8;
  const int col = ((quad & 2) | (lane & 1)) * 4 + (slot & 3);
  return {row, col, true};
}

constexpr int round_up(int n, int unit) {
  return (n + unit - 1) / unit * unit;
}

// A permutation of 0..N-1 drawn from `state`.
template <int N>
void shuffle(uint16_t (&items)[N], uint64_t& state) {
  for (int i = 0; i < N; ++i) {
    items[i] = static_cast<uint16_t>(i);
  }
  for (int i = N - 1; i > 0; --i) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    const int j = static_cast<int>((state >> 33) % static_cast<uint64_t>(i + 1));
    const uint16_t item = items[i];
    items[i] = items[j];
    items[j] = item;
  }
}

// Which element of a Rows x Cols matrix each slot of each thread holds.
//
// `Measured` is the one layout that is known, fragments in order: of a 16x32x16 product on one simdgroup, where it was
// measured, and of a 16x16x32 one, where shipped kernels of MLX rely on it. Any other is undocumented, so it is drawn
// anew for each launch, with slots that hold nothing, and a kernel that assumes one fails.
template <int Rows, int Cols, int Simdgroups, bool Measured>
struct Layout {
  static constexpr int rows = Rows;
  static constexpr int cols = Cols;
  static constexpr int simdgroups = Simdgroups;
  static constexpr int padded_rows = round_up(Rows, 16);
  static constexpr int padded_cols = round_up(Cols, 16);
  static constexpr int fragment_cols = padded_cols / 16;
  static constexpr int fragments = padded_rows / 16 * fragment_cols;
  static constexpr int fragments_each = (fragments + Simdgroups - 1) / Simdgroups;
  static constexpr int filled = fragments_each * 8;
  static constexpr int capacity = Measured ? filled : filled + 4;
  // Rows a thread may hold elements of, for reductions along rows; likewise columns.
  static constexpr int rows_each = capacity;
  static constexpr int places = Simdgroups * 32 * capacity;

  static const Place& place(int simdgroup, int lane, int slot) {
    return table()[(simdgroup * 32 + lane) * capacity + slot];
  }
  static const Place& own_place(int slot) {
    return place(Simdgroups == 1 ? 0 : static_cast<int>(machine->simdgroup), static_cast<int>(machine->lane), slot);
  }

 private:
  static const Place* table() {
    static Place places_[places];
    static uint64_t drawn_for = 0;
    if (drawn_for != machine->launch) {
      drawn_for = machine->launch;
      draw(places_);
    }
    return places_;
  }

  static void draw(Place* places_) {
    uint16_t row_of[padded_rows], col_of[padded_cols], slot_of[capacity], lane_of[32], simdgroup_of[Simdgroups];
    uint64_t state = machine->seed * 0x9e3779b97f4a7c15ull + Rows * 131 + Cols * 7 + Simdgroups;
    shuffle(row_of, state);
    shuffle(col_of, state);
    shuffle(slot_of, state);
    shuffle(lane_of, state);
    shuffle(simdgroup_of, state);
    for (int s = 0; s < Simdgroups; ++s) {
      for (int lane = 0; lane < 32; ++lane) {
        for (int slot = 0; slot < capacity; ++slot) {
          Place& place = places_[(s * 32 + lane) * capacity + slot];
          if constexpr (Measured) {
            place = fragment_element(s, lane, slot);
          } else {
            place = fragment_element(simdgroup_of[s], lane_of[lane], slot_of[slot]);
            if (place.valid) {
              place.row = row_of[place.row];
              place.col = col_of[place.col];
            }
          }
          place.valid = place.valid && place.row < Rows && place.col < Cols;
        }
      }
    }
  }

  static Place fragment_element(int simdgroup, int lane, int slot) {
    const int fragment = simdgroup * fragments_each + slot / 8;
    if (slot >= filled || fragment >= fragments) {
      return {0, 0, false};
    }
    Place place = fragment_place(lane, slot % 8);
    place.row += fragment / fragment_cols * 16;
    place.col += fragment % fragment_cols * 16;
    return place;
  }
};

// The whole matrix in one thread.
template <int Rows, int Cols>
struct ThreadLayout {
  static constexpr int rows = Rows;
  static constexpr int cols = Cols;
  static constexpr int simdgroups = 0;
  static constexpr int capacity = Rows * Cols;

  static Place own_place(int slot) {
    return {slot / Cols, slot % Cols, true};
  }
  static Place place(int, int, int slot) {
    return own_place(slot);
  }
};

template <int simdgroups, int rows, int cols, bool measured>
struct ScopeLayout {
  using type = Layout<rows, cols, simdgroups, measured>;
};
template <int rows, int cols, bool measured>
struct ScopeLayout<0, rows, cols, measured> {
  using type = ThreadLayout<rows, cols>;
};

EMU_RUNTIME_END

} // namespace emu
