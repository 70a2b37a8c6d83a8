"""What planning makes of quantized products: the kernel at each threshold, arguments, copies, sizes past 2^31."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from mlx_tessl import _ext

Operand = _ext.plan.Operand
Plan = _ext.plan.Plan
Launch = _ext.plan.Launch

M1 = {"gpu": "m1", "macos": "15.0"}
M5 = {"gpu": "m5-pro", "macos": "26.4"}
M5_262 = {"gpu": "m5-pro", "macos": "26.2"}
M5_27 = {"gpu": "m5-pro", "macos": "27.0"}
devices = pytest.mark.parametrize("device", [M1, M5_262, M5, M5_27], ids=["m1", "m5-26.2", "m5-26.4", "m5-27"])

HAS_BIAS, HAS_BATCH, ACTIVATION, HAS_K, VECTOR_OUT, VECTOR_BIAS, VECTOR_X = 1, 3, 4, 5, 6, 8, 10
MODE, BITS, GROUP, HAS_BIASES = 11, 12, 13, 14


def call(
    M: int,
    N: int,
    K: int,
    dtype: str = "bfloat16",
    *,
    transpose: bool = True,
    mode: str = "affine",
    bits: int = 4,
    group_size: int = 64,
    x: Operand | None = None,
    w: Operand | None = None,
    scales: Operand | None = None,
    **keywords: Any,
) -> Any:
    rows, columns = (N, K) if transpose else (K, N)
    groups = columns // group_size
    operands = [
        x or Operand([M, K]),
        w or Operand([rows, columns * bits // 32]),
        scales or Operand([rows, groups]),
        Operand([rows, groups]) if mode == "affine" else None,
    ]
    return _ext.plan.QuantizedMatmul(
        dtype, *operands, transpose=transpose, mode=mode, bits=bits, group_size=group_size, **keywords
    )


def only_launch(*shape: int, **keywords: Any) -> Launch:
    plan = call(*shape, **keywords).plan()
    assert plan.scratch == []
    (launch,) = plan.launches
    return launch


def args_of(launch: Launch) -> dict[str, Any]:
    values = struct.unpack("<7i2f4x2q8i8q8q30q2q8q8q", launch.bytes_of(launch.arguments[3]))
    return {
        "MNK": values[:3],
        "batch_ndim": values[3],
        "tiles": values[4:7],
        "lda": values[9],
        "ldb": values[10],
        "batch_shape": values[11 : 11 + values[3]],
        "x_batch": values[19 : 19 + values[3]],
        "w_batch": values[27 : 27 + values[3]],
        "ld_scales": values[65],
        "ld_biases": values[66],
        "scales_batch": values[67 : 67 + values[3]],
        "biases_batch": values[75 : 75 + values[3]],
    }


# The kernel at each threshold


@pytest.mark.parametrize(
    ("gpu", "macos", "limits"),
    [
        ("m1", "15.0", (14, 10, 6)),
        ("m2-max", "15.0", (14, 10, 6)),
        ("m1-ultra", "15.0", (32, 18, 12)),
        ("m3", "15.0", (18, 12, 10)),
        ("m4-max", "26.4", (18, 12, 10)),
        ("m3-ultra", "15.0", (32, 18, 12)),
        ("m5", "26.4", (33, 25, 13)),
        ("m5-max", "15.0", (33, 25, 13)),
    ],
)
def test_limits_of_vectors(gpu: str, macos: str, limits: tuple[int, int, int]) -> None:
    widths = ((2048, 2048), (2049, 64), (64, 4096), (4097, 64), (64, 8192))
    for (N, K), limit in zip(widths, (limits[0], limits[1], limits[1], limits[2], limits[2]), strict=True):
        assert call(limit - 1, N, K, gpu=gpu, macos=macos).kind == "vector"
        assert call(limit, N, K, gpu=gpu, macos=macos).kind != "vector"


@devices
def test_limit_of_vectors_with_plain_weights(device: dict[str, str]) -> None:
    assert call(4, 64, 100, transpose=False, **device).kind == "vector"
    assert call(5, 64, 100, transpose=False, **device).kind != "vector"


@pytest.mark.parametrize(
    ("device", "M", "dtype", "relaxed", "kind", "reason"),
    [
        (M1, 64, "bfloat16", False, "portable", "no matrix unit"),
        ({"gpu": "m5", "macos": "26.1"}, 64, "bfloat16", False, "portable", "no matrix unit"),
        (M5, 64, "float32", False, "portable", "exact float32"),
        (M5, 64, "float32", True, "direct", "in registers"),
        (M5, 64, "bfloat16", False, "direct", "in registers"),
        (M5, 65, "bfloat16", False, "staged", "threadgroup memory"),
        (M5_262, 64, "bfloat16", False, "staged", "threadgroup memory"),
        ({"gpu": "m5", "macos": "26.3"}, 64, "float16", False, "direct", "in registers"),
    ],
)
def test_kinds_of_tiles(device: dict[str, str], M: int, dtype: str, relaxed: bool, kind: str, reason: str) -> None:
    for transpose in (True, False):
        chosen = call(M, 128, 128, dtype, transpose=transpose, relaxed=relaxed, **device)
        assert chosen.kind == kind
        assert reason in chosen.reason
        launch = chosen.plan().launches[-1]
        assert launch.kernel.startswith(f"quantized_matmul_{kind}_{'nt' if transpose else 'nn'}_{dtype}_")
        assert launch.capability == ("portable" if kind == "portable" else "tensorops")


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, "native"),
        ({"mode": "mxfp8", "bits": 8}, "native"),
        ({"dtype": "bfloat16"}, "direct"),
        ({"mode": "nvfp4", "group_size": 16}, "direct"),
        ({"mode": "affine"}, "direct"),
        ({"transpose": False}, "direct"),
        ({"macos": "26.4"}, "direct"),
        ({"M": 32}, "vector"),
        ({"w": Operand([128, 16], [32, 1])}, "direct"),  # rows apart: so would be their scales
        ({"w": Operand([128, 16], [16, 1], 8)}, "direct"),  # not on 16 bytes
        ({"scales": Operand([128, 4], [8, 1])}, "direct"),
        ({"x": Operand([64, 128], [128, 1], 2)}, "direct"),
        ({"M": 128, "x": Operand([128, 128], [128, 1], 2)}, "direct"),
    ],
)
def test_native_kernels(changes: dict[str, Any], kind: str) -> None:
    options = {"M": 64, "dtype": "float16", "mode": "mxfp4", "group_size": 32, **M5_27, **changes}
    chosen = call(options.pop("M"), 128, 128, options.pop("dtype"), **options)
    assert chosen.kind == kind
    if kind == "native":
        launch = chosen.plan().launches[-1]
        assert launch.kernel == f"quantized_matmul_{options['mode']}_float16_64x64"
        assert launch.capability == "tensorops27"
        assert set(launch.constants) == set(range(10))


@pytest.mark.parametrize(("macos", "kind"), [("26.4", "direct"), ("26.2", "portable")])
@pytest.mark.parametrize(
    "x",
    [
        Operand([128, 128], [128, 1], 2),  # not on 16 bytes
        Operand([128, 128], [-128, 1], 127 * 256),
        Operand([128, 128], [0, 1]),
        Operand([128, 128], [2**24, 1]),  # 128 rows span 2^32 bytes
    ],
    ids=["offset", "backwards", "broadcast", "apart"],
)
def test_x_that_matmul2d_cannot_read(x: Operand, macos: str, kind: str) -> None:
    assert call(128, 128, 128, x=x, gpu="m5-pro", macos=macos).kind == kind


@pytest.mark.parametrize(
    ("device", "M", "N", "tile", "grid"),
    [
        (M1, 40, 32, "32x32", (1, 2, 1)),
        (M1, 512, 512, "64x32", (16, 8, 1)),
        (M5, 40, 512, "64x128", (4, 1, 1)),
        (M5, 100, 512, "64x64", (8, 2, 1)),
        (M5, 2048, 1024, "128x64", (16, 16, 1)),
        (M5_262, 64, 512, "64x64", (8, 1, 1)),
    ],
)
def test_tiles(device: dict[str, str], M: int, N: int, tile: str, grid: tuple[int, int, int]) -> None:
    launch = only_launch(M, N, 128, **device)
    assert launch.kernel.endswith(tile)
    assert launch.grid == grid
    assert launch.group == (128, 1, 1)


@pytest.mark.parametrize(
    ("M", "rows", "columns"), [(1, 1, 8), (2, 2, 8), (3, 4, 8), (8, 8, 4), (9, 16, 4), (17, 32, 2), (32, 32, 2)]
)
def test_grid_of_vectors(M: int, rows: int, columns: int) -> None:
    launch = only_launch(M, 65, 128, **M5)
    assert launch.kernel == f"quantized_matmul_vector_nt_bfloat16_{rows}"
    assert launch.grid == (-(-65 // columns), 1, 1)
    assert launch.group == (64, 1, 1)


def test_grid_of_vectors_with_plain_weights() -> None:
    for M, rows in ((1, 1), (2, 4), (4, 4)):
        launch = only_launch(M, 192, 100, transpose=False, **M5)
        assert launch.kernel == f"quantized_matmul_vector_nn_bfloat16_{rows}"
        assert launch.grid == (3, 1, 1)
        assert launch.group == (128, 1, 1)


# Arguments and constants


@devices
def test_arguments(device: dict[str, str]) -> None:
    launch = only_launch(40, 96, 192, bias=Operand([96]), activation="silu", **device)
    roles = [(a.role, a.index) for a in launch.arguments]
    assert roles == [
        ("input", 0),
        ("input", 1),
        ("output", 0),
        ("bytes", 0),
        ("input", 2),
        ("input", 3),
        ("input", 4),
    ]
    args = args_of(launch)
    assert args["MNK"] == (40, 96, 192)
    assert (args["lda"], args["ldb"], args["ld_scales"], args["ld_biases"]) == (192, 24, 3, 3)
    constants = launch.constants
    assert (constants[HAS_BIAS], constants[ACTIVATION], constants[HAS_K]) == (True, 2, True)
    assert (constants[MODE], constants[BITS], constants[GROUP], constants[HAS_BIASES]) == (0, 4, 64, True)
    assert (constants[VECTOR_X], constants[VECTOR_OUT], constants[VECTOR_BIAS]) == (True, True, True)


def test_modes_of_codes_have_no_biases() -> None:
    launch = only_launch(40, 96, 192, "float32", mode="nvfp4", group_size=16, bias=Operand([96]), **M1)
    roles = [(a.role, a.index) for a in launch.arguments]
    assert roles[4:] == [("input", 2), ("unused", 0), ("input", 3)]
    assert (launch.constants[MODE], launch.constants[GROUP], launch.constants[HAS_BIASES]) == (3, 16, False)


def test_no_k_binds_no_operand() -> None:
    launch = only_launch(40, 64, 0, transpose=False, **M1)
    roles = [a.role for a in launch.arguments]
    assert roles == ["unused", "unused", "output", "bytes", "unused", "unused", "unused"]
    assert (launch.constants[HAS_K], launch.constants[HAS_BIASES]) == (False, False)


def test_nothing_to_do() -> None:
    assert call(0, 64, 64, **M1).plan().launches == []
    assert call(3, 0, 64, **M1).plan().launches == []


@pytest.mark.parametrize(
    ("x", "vector"),
    [
        (Operand([40, 192]), True),
        (Operand([40, 192], [196, 1]), True),
        (Operand([40, 192], [194, 1]), False),
        (Operand([40, 192], [192, 1], 4), False),
    ],
)
def test_vector_loads_of_x_need_alignment(x: Operand, vector: bool) -> None:
    assert only_launch(40, 96, 192, x=x, **M1).constants[VECTOR_X] is vector


def test_a_sequence_is_rows() -> None:
    launch = only_launch(40, 96, 192, x=Operand([2, 20, 192]), **M1)
    assert args_of(launch)["MNK"] == (40, 96, 192)
    assert args_of(launch)["batch_shape"] == ()


def test_batched_weights_keep_rows_apart() -> None:
    """One row for each member: folding the batch into rows would give all rows the first member's scales."""
    x = Operand([6, 1, 192])
    shared = call(1, 96, 192, x=x, **M1).plan().launches[-1]
    assert args_of(shared)["MNK"] == (6, 96, 192)
    mapped = call(1, 96, 192, x=x, scales=Operand([6, 96, 3]), **M1).plan().launches[-1]
    args = args_of(mapped)
    assert args["MNK"] == (1, 96, 192)
    assert (args["batch_shape"], args["x_batch"], args["w_batch"]) == ((6,), (192,), (0,))
    assert (args["scales_batch"], args["biases_batch"]) == ((288,), (0,))


def test_strided_operands_are_copied() -> None:
    plan = call(
        40,
        96,
        192,
        "float16",
        x=Operand([40, 192], [1, 40]),
        w=Operand([96, 24], [1, 96]),
        scales=Operand([96, 3], [1, 96]),
        **M1,
    ).plan()
    assert plan.scratch == [40 * 192 * 2, 96 * 24 * 4, 96 * 3 * 2]
    assert [launch.kernel for launch in plan.launches[:-1]] == [
        "copy_strided_uint16",
        "copy_strided_uint32",
        "copy_strided_uint16",
    ]
    args = args_of(plan.launches[-1])
    assert (args["lda"], args["ldb"], args["ld_scales"], args["ld_biases"]) == (192, 24, 3, 3)


def test_scale_codes_are_copied_as_bytes() -> None:
    plan = call(40, 96, 192, mode="mxfp4", group_size=32, scales=Operand([96, 6], [1, 96]), **M1).plan()
    assert plan.scratch == [96 * 6]
    assert plan.launches[0].kernel == "copy_strided_uint8"


# Past 2^31


@devices
def test_weights_beyond_two_to_the_31(device: dict[str, str]) -> None:
    N, K = 2**20, 2**15  # 2^35 values
    for M in (1, 40, 2**16):
        args = args_of(only_launch(M, N, K, **device))
        assert args["MNK"] == (M, N, K)
        assert (args["ldb"], args["ld_scales"]) == (K // 8, K // 64)


def test_batch_strides_beyond_two_to_the_31() -> None:
    N, K = 2**17, 2**15
    x, w, scales = Operand([4, 40, K]), Operand([4, N, K // 8]), Operand([4, N, K // 64])
    args = args_of(only_launch(40, N, K, x=x, w=w, scales=scales, **M1))
    assert args["w_batch"] == (N * K // 8,)
    assert args["scales_batch"] == (N * K // 64,)


def test_rows_beyond_two_to_the_31_columns_of_output() -> None:
    launch = only_launch(2**20, 2**16, 64, **M5)
    assert args_of(launch)["MNK"] == (2**20, 2**16, 64)
    assert launch.grid[0] * launch.grid[1] * launch.grid[2] >= 2**20 // 128 * 2**16 // 64


# The embedding


def test_embedding() -> None:
    table = [Operand([2**20, 96]), Operand([2**20, 12]), Operand([2**20, 12])]
    (launch,) = _ext.plan.quantized_embedding("float16", 7, *table).launches
    assert launch.kernel == "quantized_embedding_float16"
    assert launch.grid == (3, 7, 1)
    assert launch.group == (32, 1, 1)
    V, D, *strides = struct.unpack("<2i3q", launch.bytes_of(launch.arguments[5]))
    assert (V, D, strides) == (2**20, 768, [96, 12, 12])


def test_embedding_of_a_strided_table() -> None:
    table = [Operand([50, 8], [1, 50]), Operand([50, 1], [1, 50]), Operand([50, 1], [1, 50])]
    plan = _ext.plan.quantized_embedding("float32", 7, *table)
    assert plan.scratch == [50 * 8 * 4]
    assert [launch.kernel for launch in plan.launches] == ["copy_strided_uint32", "quantized_embedding_float32"]


def test_embedding_refuses_more_ids_than_a_grid_has_rows() -> None:
    table = [Operand([50, 8]), Operand([50, 1]), Operand([50, 1])]
    with pytest.raises(ValueError, match=r"\[mlx_tessl.quantized_embedding\] ids has 2147483648 elements"):
        _ext.plan.quantized_embedding("float32", 2**31, *table)
    assert _ext.plan.quantized_embedding("float32", 0, *table).launches == []
