#pragma once

// The order in which threadgroups visit the tiles of a matrix. Included by the host (C++20) and by the shaders.
//
//   width = 0: row by row. The grid is (tiles_n, tiles_m).
//   width > 0: bands of `width` tile rows, each walked down one column of tiles after another, so that threadgroups
//              that run together read few rows of a and few columns of b.
//              The grid is (tiles_n * width, ceil(tiles_m / width)); what a lower last band leaves over is not inside.

struct GridTile {
  int32_t row;
  int32_t column;
  bool inside;
};

inline GridTile grid_tile(uint32_t x, uint32_t y, int32_t tiles_m, int32_t tiles_n, int32_t width) {
  if (width == 0) {
    return {int32_t(y), int32_t(x), true};
  }
  const uint32_t first_row = y * uint32_t(width);
  const uint32_t rows_left = uint32_t(tiles_m) - first_row;
  const uint32_t height = rows_left < uint32_t(width) ? rows_left : uint32_t(width);
  const uint32_t column = x / height;
  return {int32_t(first_row + x % height), int32_t(column), column < uint32_t(tiles_n)};
}
