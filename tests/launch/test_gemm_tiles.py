"""Tiles and grid walks at, under and over each threshold of csrc/launch/gemm_tiles.cpp."""

from __future__ import annotations

import re
import struct

import pytest

from mlx_tessl import _ext

plan = _ext.plan
INT32_MAX = 2**31 - 1


def plan_of(
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
) -> _ext.plan.Plan:
    """The plan of ``a [batch, M, K] @ b [batch, K, N]`` with operands that lie as ``layout`` says."""
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
    return call.plan()


def launch_of(*args: object, **keywords: object) -> _ext.plan.Launch:
    (launch,) = plan_of(*args, **keywords).launches  # type: ignore[arg-type]
    return launch


def tile_of(*args: object, **keywords: object) -> tuple[int, int]:
    match = re.search(r"_(\d+)x(\d+)$", launch_of(*args, **keywords).kernel)
    assert match
    return int(match[1]), int(match[2])


def walk_width_of(*args: object, **keywords: object) -> int:
    launch = launch_of(*args, **keywords)
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
    assert tile_of("m5", 256, 9 * 64, 64) == (64, 128)
    assert tile_of("m5-max", 256, 10 * 64, 64) == (64, 64)


@pytest.mark.parametrize(
    ("gpu", "layout", "tile"),
    [
        ("m5", "nn", (64, 128)),
        ("m5-pro", "nn", (128, 64)),
        ("m5-max", "nn", (64, 128)),
        ("m4", "nn", (64, 64)),
        ("m4", "nt", (64, 32)),
        ("m4", "tn", (64, 64)),
        ("m4-pro", "nt", (64, 64)),
        ("m2-ultra", "nt", (64, 64)),
    ],
)
def test_the_general_tile_of_each_class_of_gpu(gpu: str, layout: str, tile: tuple[int, int]) -> None:
    assert tile_of(gpu, 4096, 4096, 256, layout=layout) == tile


# Vectors and partitions of K


def kind_of(*args: object, **keywords: object) -> str:
    """vector, split or tiled; and of a split plan, that it is whole."""
    launches = plan_of(*args, **keywords).launches  # type: ignore[arg-type]
    kernels = [launch.kernel for launch in launches]
    if len(kernels) == 1:
        return "vector" if kernels[0].startswith("matmul_vector_") else "tiled"
    assert len(kernels) == 2
    assert "_sums_" in kernels[0] or "float32" in kernels[0]
    assert kernels[1].startswith("matmul_reduce_")
    return "split"


@pytest.mark.parametrize(
    ("gpu", "M", "N", "K", "layout", "kind"),
    [
        ("m1", 1, 512, 127, "nn", "tiled"),  # the lanes of a simdgroup take 128 of K
        ("m1", 1, 512, 128, "nn", "vector"),
        ("m1", 8, 512, 128, "nt", "vector"),
        ("m1", 9, 512, 128, "nt", "tiled"),
        ("m1", 1, 512, 128, "tn", "vector"),  # a row has no layout
        ("m1", 2, 512, 128, "tn", "tiled"),
        ("m1", 8, 7 * 64, 2047, "nn", "vector"),  # 7 threadgroups on 8 cores, but a short K
        ("m1", 8, 7 * 64 + 1, 2048, "nn", "vector"),
        ("m1", 8, 7 * 32, 2048, "nn", "split"),
        ("m1", 8, 8 * 8, 2048, "nt", "vector"),
        ("m1", 8, 7 * 8, 2048, "nt", "split"),
        ("m5-pro", 8, 4096, 4096, "nt", "vector"),
        ("m5-pro", 9, 4096, 4096, "nt", "tiled"),
        ("m1", 32, 7 * 32, 2048, "nn", "split"),
        ("m1", 32, 7 * 32, 2047, "nn", "tiled"),
        ("m1", 32, 8 * 32, 2048, "nn", "tiled"),
        ("m5-pro", 64, 19 * 64, 2048, "tn", "split"),
        ("m5-pro", 64, 19 * 64, 2047, "tn", "tiled"),
        ("m5-pro", 64, 20 * 64, 2048, "tn", "tiled"),
        ("m5-pro", 2048, 2048, 8192, "nn", "split"),  # K >= 3 max(M, N)
        ("m5-pro", 2048, 2731, 8192, "nn", "tiled"),
        ("m5-pro", 2048, 2048, 8191, "nn", "tiled"),
        ("m1", 2048, 2048, 8192, "nn", "tiled"),
    ],
)
def test_kind(gpu: str, M: int, N: int, K: int, layout: str, kind: str) -> None:
    assert kind_of(gpu, M, N, K, layout=layout) == kind
    assert kind_of(gpu, M, N, K, layout=layout, batch_invariant=True) == "tiled"


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize(("layout", "columns", "threads"), [("nn", 64, 128), ("nt", 8, 64)])
def test_vector_kernels_of_rows(rows: int, layout: str, columns: int, threads: int) -> None:
    launch = launch_of("m1", rows, 1000, 256, layout=layout, batch=3)
    size = next(size for size in (1, 2, 4, 8) if size >= rows)
    assert launch.kernel == f"matmul_vector_{layout}_bfloat16_{size}"
    assert launch.grid == (-(-1000 // columns), 1, 3)
    assert launch.group == (threads, 1, 1)


def test_a_column_is_the_row_of_the_transpose() -> None:
    launch = launch_of("m1", 1000, 1, 256)
    assert launch.kernel == "matmul_vector_nt_bfloat16_1"
    assert [argument.index for argument in launch.arguments[:2]] == [1, 0]
    assert launch_of("m1", 1000, 1, 256, layout="tn").kernel == "matmul_vector_nn_bfloat16_1"
    assert launch_of("m1", 1000, 1, 256, batch_invariant=True).kernel.startswith("matmul_portable_")


def partition_of(*args: object, **keywords: object) -> tuple[int, int]:
    """K of a partition and their number."""
    plan = plan_of(*args, **keywords)  # type: ignore[arg-type]
    product, reduction = plan.launches
    M, N, K = struct.unpack_from("<3i", product.bytes_of(product.arguments[3]))
    partition = int(struct.unpack_from("<10i", product.bytes_of(product.arguments[3]))[9])
    partitions = -(-K // partition)
    (scratch,) = plan.scratch
    batch = int(str(keywords.get("batch", 1)))
    assert scratch == batch * partitions * M * N * 4
    assert product.grid[2] == batch * partitions
    assert reduction.grid == (-(-N // 128), -(-M // 4), batch)
    assert [(x.role, x.index) for x in reduction.arguments[:3]] == [("scratch_in", 0), ("unused", 0), ("output", 0)]
    return partition, partitions


@pytest.mark.parametrize(
    ("gpu", "M", "N", "K", "batch", "partition"),
    [
        ("m5-pro", 64, 64, 2048, 1, (512, 4)),  # none shorter than 512
        ("m5-pro", 64, 64, 16384, 1, (512, 32)),
        ("m5-pro", 64, 64, 32768, 1, (1024, 32)),  # 40 of them on 20 cores, in steps of 256
        ("m5-pro", 64, 64, 32768, 10, (8192, 4)),
        ("m5-pro", 64, 19 * 64, 2050, 1, (768, 3)),
        ("m5-pro", 2048, 2048, 8192 + 4, 1, (4096, 3)),
        ("m5-pro", 4096, 4096, 65536, 1, (4096, 16)),
        ("m5-pro", 20000, 20000, 65536, 1, (20224, 4)),  # no more bytes of partial sums than of operands
    ],
)
def test_partitions(gpu: str, M: int, N: int, K: int, batch: int, partition: tuple[int, int]) -> None:
    assert partition_of(gpu, M, N, K, batch=batch) == partition


@pytest.mark.parametrize(("dtype", "precision"), [("float32", "float32"), ("bfloat16", "bfloat16_sums")])
def test_partial_sums_are_float32(dtype: str, precision: str) -> None:
    product, reduction = plan_of("m1", 64, 32, 4096, dtype=dtype).launches
    assert product.kernel == f"matmul_portable_nn_{precision}_32x32"
    assert reduction.kernel == f"matmul_reduce_{dtype}"


def test_the_epilogue_is_left_to_the_reduction() -> None:
    operands = {"c": plan.Operand([64, 32]), "bias": plan.Operand([32]), "residual": plan.Operand([64, 32])}
    call = plan.Matmul(
        "float16",
        plan.Operand([64, 4096]),
        plan.Operand([4096, 32]),
        alpha=2.0,
        beta=1.0,
        activation="relu",
        gpu="m1",
        macos="15.0",
        **operands,
    )
    product, reduction = call.plan().launches
    addends = [[(x.role, x.index) for x in launch.arguments[4:]] for launch in (product, reduction)]
    assert addends == [[("unused", 0)] * 3, [("input", 2), ("input", 3), ("input", 4)]]
    assert [launch.constants[4] for launch in (product, reduction)] == [0, 1]
    scales = [struct.unpack_from("<7i2f", launch.bytes_of(launch.arguments[3]))[7:] for launch in (product, reduction)]
    assert scales == [(1.0, 0.0), (2.0, 1.0)]


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
        ("m1", "float32", "nn", 2048, 8),  # 512 rows of 64x64 tiles
        ("m1", "float32", "nn", 2047, 0),
        ("m5-pro", "float32", "nn", 2048, 4),  # 512 rows of 128x64 tiles
        ("m5-pro", "bfloat16", "nn", 2048, 0),
        ("m5-pro", "bfloat16", "nt", 2048, 4),
        ("m5-pro", "bfloat16", "nt", 2040, 0),
        ("m5-pro", "bfloat16", "tn", 2048, 4),
        ("m5-pro", "float16", "tt", 2048, 4),
    ],
)
def test_bands_from_2_to_the_23_elements_of_b(gpu: str, dtype: str, layout: str, K: int, width: int) -> None:
    assert walk_width_of(gpu, 1024, 4096, K, dtype=dtype, layout=layout, relaxed=True) == width


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
