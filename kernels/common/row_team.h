#pragma once

#include <metal_stdlib>

// The threads that share a row: all of a threadgroup (wide), or one simdgroup, so that a threadgroup takes as many rows
// as it has simdgroups. Set by set_row_teams of the host.
constant bool row_team_wide [[function_constant(0)]];

constant constexpr int row_team_max_simdgroups = 32;

// A thread takes its runs of four columns by turns of so many. A row of one turn, which all of up to 4096 columns are,
// stays in registers from one pass to the next.
constant constexpr int row_turn = 4;

struct RowTeam {
  int64_t row;
  int index; // of this thread
  int size;
  uint simdgroup;
  uint simdgroups;
  uint lane;

  int step() const thread { // columns between the runs of a thread
    return size * 4;
  }
  bool keeps(int columns) const thread {
    return columns <= size * 4 * row_turn;
  }
};

inline RowTeam row_team(uint group, uint simdgroup, uint simdgroups, uint lane) {
  RowTeam team;
  team.row = row_team_wide ? int64_t(group) : int64_t(group) * simdgroups + simdgroup;
  team.index = row_team_wide ? int(simdgroup * 32 + lane) : int(lane);
  team.size = row_team_wide ? int(simdgroups * 32) : 32;
  team.simdgroup = simdgroup;
  team.simdgroups = simdgroups;
  team.lane = lane;
  return team;
}

// Reductions over a team, the result in every thread; `shared` has row_team_max_simdgroups elements. The first barrier
// keeps a reduction from overwriting what the one before is still being read from.
template <typename T>
inline T row_team_exchange(T x, T neutral, threadgroup T* shared, thread const RowTeam& team) {
  threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  if (team.lane == 0) {
    shared[team.simdgroup] = x;
  }
  threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  return team.lane < team.simdgroups ? shared[team.lane] : neutral;
}

inline float row_team_sum(float x, threadgroup float* shared, thread const RowTeam& team) {
  x = metal::simd_sum(x);
  return row_team_wide ? metal::simd_sum(row_team_exchange(x, 0.0f, shared, team)) : x;
}

// The greatest of numbers: a NaN is passed over.
inline float row_team_max(float x, threadgroup float* shared, thread const RowTeam& team) {
  x = metal::simd_max(x);
  return row_team_wide ? metal::simd_max(row_team_exchange(x, -INFINITY, shared, team)) : x;
}

inline uint row_team_min(uint x, threadgroup uint* shared, thread const RowTeam& team) {
  x = metal::simd_min(x);
  return row_team_wide ? metal::simd_min(row_team_exchange(x, 0xffffffffu, shared, team)) : x;
}
