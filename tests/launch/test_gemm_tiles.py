"""Tiles and grid walks at, under and over each threshold of csrc/launch/gemm_tiles.cpp."""

from __future__ import annotations

import re
import struct

import pytest

from mlx_tessl import _ext

plan = _ext.plan
INT32_MAX = 2**31 - 1


def launch_of(
    gpu: str,
    M: int,
    N: int,
    K: int,
    *,
    dtype: str = "bfloat16",
    layout: str = "nn",
    batch: int = 1,
    relaxed: bool = False,
    batch_invariant: bool = False,
) -> _ext.plan.Launch:
    """The launch of ``a [batch, M, K] @ b [batch, K, N]`` with operands that lie as ``layout`` says."""
    a_strides = [M * K, K, 1] if layout[0] == "n" else [M * K, 1, M]
    b_strides = [K * N, N, 1] if layout[1] == "n" else [K * N, 1, K]
    call = plan.Matmul(
        dtype,
        plan.Operand([batch, M, K], a_strides),
        plan.Operand([batch, K, N], b_strides),
        relaxed=relaxed,
        batch_invariant=batch_invariant,
        gpu=gpu,
        macos="26.4",
    )
    (launch,) = call.plan().launches
    return launch


def tile_of(*args: object, **keywords: object) -> tuple[int, int]:
    match = re.search(r"_(\d+)x(\d+)$", launch_of(*args, **keywords).kernel)  # type: ignore[arg-type]
    assert match
    return int(match[1]), int(match[2])


def walk_width_of(*args: object, **keywords: object) -> int:
    launch = launch_of(*args, **keywords)  # type: ignore[arg-type]
    return int(struct.unpack_from("<7i", launch.bytes_of(launch.arguments[3]))[6])


@pytest.mark.parametrize(
    ("M", "N", "tile"),
    [
        (4096, 32, (32, 32)),
        (4096, 33, (64, 64)),
        (32, 4096, (32, 32)),
        (33, 4096, (64, 64)),
        (64, 7 * 64, (32, 32)),  # 7 tiles of 64x64 on 8 cores
        (64, 7 * 64 + 1, (64, 64)),
        (2 * 64, 3 * 64, (32, 32)),
        (2 * 64, 4 * 64, (64, 64)),
    ],
)
def test_portable_tile(M: int, N: int, tile: tuple[int, int]) -> None:
    assert tile_of("m1", M, N, 64) == tile


@pytest.mark.parametrize(
    ("M", "N", "tile"),
    [
        (4096, 512, (64, 64)),
        (4096, 513, (128, 64)),
        (127, 4096, (64, 64)),
        (128, 4096, (128, 64)),
        (256, 9 * 64, (64, 64)),  # 18 tiles of 128x64 on 20 cores
        (256, 9 * 64 + 1, (128, 64)),
    ],
)
@pytest.mark.parametrize(("dtype", "relaxed"), [("bfloat16", False), ("float16", False), ("float32", True)])
def test_tensorops_tile(M: int, N: int, tile: tuple[int, int], dtype: str, relaxed: bool) -> None:
    assert tile_of("m5-pro", M, N, 64, dtype=dtype, relaxed=relaxed) == tile


def test_more_cores_need_more_tiles() -> None:
    assert tile_of("m5", 256, 9 * 64, 64) == (128, 64)
    assert tile_of("m5-max", 256, 10 * 64, 64) == (64, 64)


def test_batch_counts_for_full_cores() -> None:
    assert tile_of("m1", 64, 64, 64, batch=7) == (32, 32)
    assert tile_of("m1", 64, 64, 64, batch=8) == (64, 64)


def test_exact_float32_takes_32x32_a_simdgroup() -> None:
    assert tile_of("m5-pro", 4096, 4096, 64, dtype="float32") == (64, 64)


@pytest.mark.parametrize("gpu", ["m1", "m5-pro"])
@pytest.mark.parametrize("N", [16, 40, 512, 1024])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_batch_invariance_means_one_kernel_for_all_rows(gpu: str, N: int, dtype: str) -> None:
    kernels = {
        launch_of(gpu, M, N, 64, dtype=dtype, batch=batch, batch_invariant=True).kernel
        for M in (1, 5, 31, 32, 33, 127, 128, 4096)
        for batch in (1, 3, 64)
    }
    assert len(kernels) == 1


@pytest.mark.parametrize(
    ("tiles_m", "tiles_n", "width"), [(23, 89, 0), (32, 64, 8), (3, 683, 3), (1, 4096, 0), (2, 1024, 2)]
)
def test_panels_from_2048_tiles(tiles_m: int, tiles_n: int, width: int) -> None:
    assert walk_width_of("m1", 64 * tiles_m, 64 * tiles_n, 8) == width
    assert walk_width_of("m1", 64 * tiles_m - 63, 64 * tiles_n - 63, 8) == width


@pytest.mark.parametrize(
    ("gpu", "dtype", "layout", "K", "width"),
    [
        ("m1", "float32", "nn", 8192, 8),  # 512 rows of 64x64 tiles
        ("m1", "float32", "nn", 8191, 0),
        ("m5-pro", "float32", "nn", 8192, 4),  # 512 rows of 128x64 tiles
        ("m5-pro", "bfloat16", "nn", 8192, 0),
        ("m5-pro", "bfloat16", "nt", 8192, 4),
        ("m5-pro", "bfloat16", "nt", 8184, 0),
        ("m5-pro", "bfloat16", "tn", 8192, 4),
        ("m5-pro", "float16", "tt", 8192, 4),
    ],
)
def test_bands_from_2_to_the_23_elements_of_b(gpu: str, dtype: str, layout: str, K: int, width: int) -> None:
    assert walk_width_of(gpu, 1024, 1024, K, dtype=dtype, layout=layout, relaxed=True) == width


def test_a_band_is_no_higher_than_the_matrix() -> None:
    assert walk_width_of("m1", 129, 1024, 8192, dtype="float32") == 3
    assert walk_width_of("m1", 64, 1024, 8192, dtype="float32") == 0


@pytest.mark.parametrize("width", [0, 2, 3, 4, 8])
@pytest.mark.parametrize("tiles_n", [1, 2, 7, 16])
@pytest.mark.parametrize("tiles_m", [1, 3, 8, 9, 17])
def test_walk_is_a_bijection(tiles_m: int, tiles_n: int, width: int) -> None:
    width = min(width, tiles_m)
    columns, rows, batch = plan.walk_grid(tiles_m, tiles_n, width, 5)
    assert batch == 5
    tiles = [plan.grid_tile(x, y, tiles_m, tiles_n, width) for y in range(rows) for x in range(columns)]
    inside = [(row, column) for row, column, is_inside in tiles if is_inside]
    assert sorted(inside) == [(row, column) for row in range(tiles_m) for column in range(tiles_n)]
    idle = len(tiles) - len(inside)
    assert idle == (-tiles_m % width * tiles_n if width else 0)


def test_a_band_is_walked_down_its_columns() -> None:
    walk = [plan.grid_tile(x, 1, 7, 3, 4)[:2] for x in range(9)]
    assert walk == [(4, 0), (5, 0), (6, 0), (4, 1), (5, 1), (6, 1), (4, 2), (5, 2), (6, 2)]


@pytest.mark.parametrize("gpu", ["m1", "m5-pro"])
def test_largest_matrix(gpu: str) -> None:
    launch = launch_of(gpu, INT32_MAX, INT32_MAX, 8)
    tile_m, tile_n = tile_of(gpu, INT32_MAX, INT32_MAX, 8)
    assert launch.grid == plan.walk_grid(-(-INT32_MAX // tile_m), -(-INT32_MAX // tile_n), 8, 1)
    assert all(0 < extent <= INT32_MAX for extent in launch.grid)
    last = plan.grid_tile(launch.grid[0] - 1, launch.grid[1] - 1, -(-INT32_MAX // tile_m), -(-INT32_MAX // tile_n), 8)
    assert last == (-(-INT32_MAX // tile_m) - 1, -(-INT32_MAX // tile_n) - 1, True)


def test_batch_beyond_a_grid_is_refused() -> None:
    assert plan.walk_grid(1, 1, 0, INT32_MAX) == (1, 1, INT32_MAX)
    with pytest.raises(ValueError, match=r"\[mlx_tessl.matmul\] the batch has 2147483648 members"):
        plan.walk_grid(1, 1, 0, INT32_MAX + 1)
