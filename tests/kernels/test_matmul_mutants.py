"""Bugs planted in the matmul kernels and in their launches: the emulator or the float64 oracle must notice each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlx_tessl._ext import plan as plans
from mlx_tessl.emulator.runtime import EmulatorError

from .mutants import Dispatch, Mutant, plant, run, source_of

DEVICES = {"matmul": ("m1", "15.0"), "matmul_tensorops": ("m5-pro", "26.4")}


@dataclass
class Problem:
    """relu(2 a b + bias) + residual over a batch of two, at ragged sizes, K in several blocks of either family."""

    family: str
    layout: str = "nn"
    M: int = 70
    N: int = 45
    K: int = 300
    batch: int = 2
    relaxed: bool = False

    def __post_init__(self) -> None:
        rng = np.random.default_rng(0)
        self.a, self.b = (
            rng.standard_normal((self.batch, *s)).astype(np.float32) for s in ((self.M, self.K), (self.K, self.N))
        )
        self.bias = rng.standard_normal(self.N).astype(np.float32)
        self.residual = rng.standard_normal((self.batch, self.M, self.N)).astype(np.float32)

    def stored(self, matrix: np.ndarray, transposed: bool) -> np.ndarray:
        return np.ascontiguousarray(matrix.swapaxes(1, 2) if transposed else matrix)

    def plan(self) -> plans.Plan:
        def operand(shape: tuple[int, ...], transposed: bool) -> plans.Operand:
            _, rows, cols = shape
            strides = (rows * cols, 1, rows) if transposed else (rows * cols, cols, 1)
            return plans.Operand(shape, strides)

        gpu, macos = DEVICES[self.family]
        problem = plans.Matmul(
            "float32",
            operand(self.a.shape, self.layout[0] == "t"),
            operand(self.b.shape, self.layout[1] == "t"),
            bias=plans.Operand((self.N,)),
            residual=plans.Operand(self.residual.shape),
            alpha=2.0,
            activation="relu",
            relaxed=self.relaxed,
            gpu=gpu,
            macos=macos,
        )
        plan = problem.plan()
        assert plan.launches[0].family == self.family
        return plan

    def inputs(self) -> list[np.ndarray]:
        a, b = self.stored(self.a, self.layout[0] == "t"), self.stored(self.b, self.layout[1] == "t")
        return [a, b, self.bias, self.residual]

    def expected(self) -> np.ndarray:
        a, b = (x.astype(np.float64) for x in (self.a, self.b))
        return np.maximum(2 * (a @ b) + self.bias, 0) + self.residual

    def allowed(self) -> np.ndarray:
        """K float32 roundings, or two truncations to tf32, of the sum of magnitudes. Seen: 0.01 and 0.37 of it."""
        a, b = (np.abs(x.astype(np.float64)) for x in (self.a, self.b))
        return 2 * (a @ b) * (2 * 2.0**-10 if self.relaxed else self.K * 2.0**-24) + 1e-6


def portable(name: str, original: str, planted: str, **problem: Any) -> Mutant:
    return Mutant("matmul", name, original, planted, problem)


def tensorops(name: str, original: str, planted: str, **problem: Any) -> Mutant:
    return Mutant("matmul_tensorops", name, original, planted, problem)


STAGED = "      threadgroup_barrier(mem_flags::mem_threadgroup);\n      multiply_blocks"
USED = "      );\n      threadgroup_barrier(mem_flags::mem_threadgroup);\n      a_tile"
STRIP = "    metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);\n    for (int q"

SPLIT: dict[str, Any] = {"M": 22, "N": 36, "K": 2052}
VECTOR_NT: dict[str, Any] = {"layout": "nt", "M": 3, "N": 45, "K": 302}
VECTOR_NN: dict[str, Any] = {"M": 3, "N": 150, "K": 302}

MUTANTS = [
    portable("no barrier after staging", STAGED, "      multiply_blocks"),
    portable("no barrier before staging again", USED, "      );\n      a_tile"),
    portable("a barrier for another memory", STAGED, STAGED.replace("mem_threadgroup", "mem_device")),
    portable("a barrier that orders nothing", USED, USED.replace("mem_threadgroup", "mem_none")),
    portable("no barrier before the strip is read", STRIP, "    for (int q"),
    portable("the strip's barrier orders nothing", STRIP, STRIP.replace("mem_threadgroup", "mem_none")),
    portable("K tail not zeroed", "row < left.x ? left.y - column : 0", "row < left.x ? 4 : 0"),
    portable("rows off by one in staging", "row < left.x ?", "row <= left.x ?"),
    portable("row and column of the tile swapped", "m0 = tile.row * TILE_M", "m0 = tile.column * TILE_M"),
    portable("store off by one", "args.N - columns_left, columns_left", "args.N - columns_left + 1, columns_left"),
    portable("rows off by one in the store", "rows_left > 0 &&", "rows_left >= 0 &&"),
    portable("simdgroups share a part", "part_n = int(simdgroup % 2)", "part_n = int(simdgroup / 2)"),
    portable("accumulator not zeroed", "make_filled_simdgroup_matrix<float, 8, 8>(0.0f)", "simdgroup_float8x8()"),
    portable("the batch's pitch", "int64_t(z) * args.M * args.N", "int64_t(z) * args.N * args.N"),
    portable(
        "b read as it does not lie", "load_fragment<T, TRANSPOSED_B>", "load_fragment<T, !TRANSPOSED_B>", layout="nt"
    ),
    portable("a partition's end", "args.K - first, args.partition_k)", "args.K - first, args.K)", **SPLIT),
    portable(
        "member and partition exchanged", "return {z / partitions, first", "return {z % partitions, first", **SPLIT
    ),
    portable("a partition's start in a", "m0 * args.lda + part.first", "m0 * args.lda", **SPLIT),
    portable("a partition's start in b", "n0 + part.first * args.ldb", "n0 + int64_t(part.first)", **SPLIT),
    portable("a partition left out of the sum", "i < partitions; ++i", "i < partitions - 1; ++i", **SPLIT),
    portable("the member's partial sums", "position.z * uint(partitions)", "position.z", **SPLIT),
    portable("partial sums one row apart", "p += int64_t(args.M) * args.N", "p += int64_t(args.N)", **SPLIT),
    portable("rows off by one in the reduction", "row >= args.M ||", "row > args.M ||", **SPLIT),
    portable("columns of a vector off by one", "min(n0 + j, args.N - 1)", "min(n0 + j + 1, args.N - 1)", **VECTOR_NT),
    portable("a vector's columns past the edge", "min(n0 + j, args.N - 1)", "(n0 + j)", **VECTOR_NT),
    portable("a lane's k", "k = lane * 4;", "k = lane * 2;", **VECTOR_NT),
    portable("K tail of a vector", "const int count = args.K - k;", "const int count = 4;", **VECTOR_NT),
    portable("a lane stores another's sum", "lane == m * columns + j", "lane == j * columns + m", **VECTOR_NT),
    portable("rows past the last", "m < min(ROWS, args.M) && n < args.N", "n < args.N", **VECTOR_NT),
    portable("half of the lanes' sums", "sums[m] + simd_shuffle_xor(sums[m], ushort(quads))", "sums[m]", **VECTOR_NN),
    portable("a simdgroup's sums left out", "s < simdgroups; ++s", "s < simdgroups - 1; ++s", **VECTOR_NN),
    portable(
        "no barrier before the simdgroups' sums are read",
        "  threadgroup_barrier(mem_flags::mem_threadgroup);\n\n  const int m = int(thread_index) / quads",
        "\n  const int m = int(thread_index) / quads",
        **VECTOR_NN,
    ),
    portable("k of a column's threads", "k = int(thread_index) / quads;", "k = int(simdgroup);", **VECTOR_NN),
    tensorops("a partition's start in b", "n0 + part.first * args.ldb", "int64_t(n0)", **SPLIT, relaxed=True),
    tensorops("a partition that goes on", "k_left = part.k;", "k_left = args.K;", **SPLIT, relaxed=True),
    tensorops(
        "M and N swapped in the descriptor",
        "      TILE_M,\n      TILE_N,",
        "      TILE_N,\n      TILE_M,",
        M=200,  # a tile of 128 x 64
        N=700,
        K=40,
        relaxed=True,
    ),
    tensorops("rows and columns of a view swapped", "(columns, rows)", "(rows, columns)"),
    tensorops("K past its end", "const int k = min(k_left, matmul_block_k)", "const int k = matmul_block_k"),
    tensorops("accumulator not zeroed", "    acc[i] = 0.0f;\n", ""),
    tensorops("a mode that forgets earlier blocks", "mode::multiply_accumulate", "mode::multiply"),
    tensorops("a layout assumed", "  return run;\n", "  return i + 4 <= int(acc.get_capacity());\n"),
    tensorops("slots that hold nothing are stored", "&& acc.is_valid_element(j)", ""),
    tensorops(
        "columns off by one in the store",
        "if (at[1] < m_left && at[0] < n_left) {\n          sink.store1",
        "if (at[1] < m_left && at[0] <= n_left) {\n          sink.store1",
    ),
    tensorops("fewer simdgroups than there are", "execution_simdgroups<4>> op", "execution_simdgroups<2>> op"),
    tensorops(
        "transposes swapped",
        "      TRANSPOSED_A,\n      TRANSPOSED_B,",
        "      TRANSPOSED_B,\n      TRANSPOSED_A,",
        layout="nt",
    ),
    tensorops("b's pitch taken for a's", "m_left : k, args.lda)", "m_left : k, args.ldb)"),
    tensorops("a block of b skipped", "int64_t(matmul_block_k) : matmul_block_k * args.ldb", "0 : 0"),
]


@pytest.mark.parametrize("layout", ["nn", "nt", "tn"])
@pytest.mark.parametrize("family", DEVICES)
def test_the_kernels_themselves(family: str, layout: str) -> None:
    run(Problem(family, layout), source_of(family))


@pytest.mark.parametrize("problem", [SPLIT, VECTOR_NT, VECTOR_NN], ids=["split", "vector_nt", "vector_nn"])
def test_partitions_and_vectors(problem: dict[str, Any]) -> None:
    launches = Problem("matmul", **problem).plan().launches
    assert len(launches) == 1 + (problem is SPLIT)
    assert launches[0].kernel.startswith("matmul_portable" if problem is SPLIT else "matmul_vector")
    run(Problem("matmul", **problem), source_of("matmul"))


def test_the_tile_that_is_not_square() -> None:
    problem = Problem("matmul_tensorops", M=200, N=700, K=40, relaxed=True)
    assert problem.plan().launches[0].kernel.endswith("_128x64")
    run(problem, source_of("matmul_tensorops"))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.family}: {mutant.name}")
def test_mutants_are_killed(mutant: Mutant, tmp_path: Path) -> None:
    root = plant(tmp_path, mutant)
    with pytest.raises((EmulatorError, AssertionError)):
        run(Problem(mutant.family, **mutant.problem), source_of(mutant.family, root))


def exchange_operands(dispatch: Dispatch) -> None:
    dispatch.buffers[0], dispatch.buffers[1] = dispatch.buffers[1], dispatch.buffers[0]


def shift_buffers(dispatch: Dispatch) -> None:
    dispatch.buffers = {i + 1: buffer for i, buffer in dispatch.buffers.items()}


def leave_out_a_constant(dispatch: Dispatch) -> None:
    del dispatch.constants[5]


def keep_an_old_constant(dispatch: Dispatch) -> None:
    dispatch.constants[2] = False


def shorten_the_grid(dispatch: Dispatch) -> None:
    dispatch.grid = (dispatch.grid[0] - 1, *dispatch.grid[1:])


def leave_out_the_batch(dispatch: Dispatch) -> None:
    dispatch.grid = (*dispatch.grid[:2], 1)


def halve_the_threads(dispatch: Dispatch) -> None:
    dispatch.group = (64, 1, 1)


def double_the_threads(dispatch: Dispatch) -> None:
    dispatch.group = (256, 1, 1)


def truncate_the_arguments(dispatch: Dispatch) -> None:
    arguments = dispatch.buffers[3]
    assert isinstance(arguments, bytes)
    dispatch.buffers[3] = arguments[:-8]


HOST_MUTANTS = [
    exchange_operands,
    shift_buffers,
    leave_out_a_constant,
    keep_an_old_constant,
    shorten_the_grid,
    leave_out_the_batch,
    halve_the_threads,
    double_the_threads,
    truncate_the_arguments,
]


@pytest.mark.parametrize("mutant", HOST_MUTANTS, ids=lambda mutant: mutant.__name__)
@pytest.mark.parametrize("family", DEVICES)
def test_mistakes_of_the_host_are_noticed(family: str, mutant: Callable[[Dispatch], None]) -> None:
    with pytest.raises((EmulatorError, AssertionError)):
        run(Problem(family), source_of(family), mutant)
