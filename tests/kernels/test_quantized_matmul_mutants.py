"""Bugs planted in the quantized_matmul kernels: the emulator or the float64 oracle must notice each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlx_tessl._ext import plan as plans
from mlx_tessl.emulator.runtime import EmulatorError

from ..ops.conformance.quantized import quantized_matmul_oracle
from ..ops.quantization import Format, random_scale_codes, random_words
from .mutants import Mutant, plant, run, source_of

PORTABLE, TENSOROPS, NATIVE = (f"quantized_matmul{end}" for end in ("", "_tensorops", "_tensorops27"))
DEVICES = {PORTABLE: ("m1", "15.0"), TENSOROPS: ("m5-pro", "26.4"), NATIVE: ("m5-pro", "27.0")}

AFFINE3 = Format("affine", 3, 32)
AFFINE4 = Format("affine", 4, 32)
AFFINE5 = Format("affine", 5, 32)
MXFP4 = Format("mxfp4", 4, 32)
MXFP8 = Format("mxfp8", 8, 32)
NVFP4 = Format("nvfp4", 4, 16)


@dataclass
class Problem:
    """relu(x W + bias) over a batch of two, with tails in every direction; N is whole groups for plain weights."""

    family: str
    format: Format = AFFINE4
    transpose: bool = True
    M: int = 40
    K: int = 352
    N: int = 37
    batch: int = 2

    def __post_init__(self) -> None:
        rng = np.random.default_rng(0)
        if not self.transpose:
            self.N, self.K = 3 * self.format.group_size, 50
        self.dtype = np.float16 if self.family == NATIVE else np.float32
        rows, columns = (self.N, self.K) if self.transpose else (self.K, self.N)
        groups = columns // self.format.group_size
        self.x = rng.standard_normal((self.batch, self.M, self.K)).astype(self.dtype)
        self.weights = {"w": random_words(self.format, (self.batch, rows), columns)}
        if self.format.affine:
            scales = rng.standard_normal((2, self.batch, rows, groups)).astype(self.dtype)
            self.weights |= {"scales": scales[0] / 2**self.format.bits, "biases": scales[1]}
        else:
            self.weights["scales"] = random_scale_codes(self.format, (self.batch, rows), groups)
        self.bias = rng.standard_normal(self.N).astype(self.dtype)

    def plan(self) -> plans.Plan:
        gpu, macos = DEVICES[self.family]
        operands = [plans.Operand(x.shape) for x in (self.x, *self.weights.values())]
        problem = plans.QuantizedMatmul(
            np.dtype(self.dtype).name,
            *operands,
            bias=plans.Operand([self.N]),
            transpose=self.transpose,
            activation="relu",
            relaxed=self.family == TENSOROPS,
            gpu=gpu,
            macos=macos,
            **self.format.keywords,  # type: ignore[arg-type]
        )
        plan = problem.plan()
        assert [launch.family for launch in plan.launches] == [self.family]
        return plan

    def inputs(self) -> list[np.ndarray]:
        return [self.x, *self.weights.values(), self.bias]

    def oracle(self) -> tuple[np.ndarray, np.ndarray]:
        wide = {n: y.astype(np.float64) if y.dtype == self.dtype else y for n, y in self.weights.items()}
        options: dict[str, Any] = {**self.format.keywords, "transpose": self.transpose, "activation": "relu"}
        return quantized_matmul_oracle(self.x.astype(np.float64), **wide, bias=self.bias.astype(np.float64), **options)

    def expected(self) -> np.ndarray:
        return self.oracle()[0]

    def allowed(self) -> np.ndarray:
        """float32 roundings of the sum of magnitudes, tf32 or float16 of the operands, one rounding of the result."""
        expected, magnitude = self.oracle()
        operands = 2 * 2.0**-10 if self.family == TENSOROPS else 0.0
        result = 2.0**-11 if self.family == NATIVE else 2.0**-24
        return ((self.K + 16) * 2.0**-24 + operands) * magnitude + result * np.abs(expected) + 1e-6


def portable(name: str, original: str, planted: str, **problem: Any) -> Mutant:
    return Mutant(PORTABLE, name, original, planted, problem)


def tensorops(name: str, original: str, planted: str, **problem: Any) -> Mutant:
    return Mutant(TENSOROPS, name, original, planted, problem)


def native(name: str, original: str, planted: str) -> Mutant:
    return Mutant(NATIVE, name, original, planted, {"format": MXFP8})


FEW = {"M": 3}
STAGED = "      threadgroup_barrier(mem_flags::mem_threadgroup);\n      multiply_blocks"
USED = "      );\n      threadgroup_barrier(mem_flags::mem_threadgroup);\n    }\n  }\n\n  const MatmulAddends"

MUTANTS = [
    portable(
        "the scale of the next group",
        "const int group = column / quantized_group;\n  const float scale",
        "const int group = (column + 8) / quantized_group;\n  const float scale",
        **FEW,
    ),
    portable("biases forgotten", "metal::fma(float4(scale), values, float4(bias))", "scale * values", **FEW),
    portable("a nibble too high", "octet.x >> bit :", "octet.x >> (bit + 1) :", **FEW),
    portable(
        "codes that straddle words",
        "code |= octet.y << (32 - bit)",
        "code |= octet.y << (31 - bit)",
        format=AFFINE5,
        **FEW,
    ),
    portable(
        "three bytes for five",
        "quantized_bits == 3 ? uint2(low, 0u)",
        "quantized_bits <= 5 ? uint2(low, 0u)",
        format=AFFINE5,
        **FEW,
    ),
    portable("bytes of an octet", "+ quantized_bits * octet;", "+ 4 * octet;", format=AFFINE3, **FEW),
    portable("subnormals of e2m1", "magnitude < 2u ?", "magnitude < 1u ?", format=NVFP4, **FEW),
    portable("the sign of a scale", "(code & 0x80u) != 0u ? -value", "false ? -value", format=NVFP4, **FEW),
    portable("e8m0 off by one", "code << 23)", "(code + 1u) << 23)", format=MXFP4, **FEW),
    portable("tail of K read as whole", "k < product.K; k += simd_width", "k <= product.K; k += simd_width", **FEW),
    portable("lanes skip an octet", "int k = lane * octet_size; k <", "int k = (lane + 1) * octet_size; k <", **FEW),
    portable("columns past the end are stored", "m < product.M && n < product.N)", "m < product.M)", **FEW),
    portable(
        "no barrier before partial sums are added",
        "  threadgroup_barrier(mem_flags::mem_threadgroup);\n\n  const int m",
        "  const int m",
        transpose=False,
        **FEW,
    ),
    portable("a shuffle forgotten", "  x += simd_shuffle_xor(x, ushort(16));\n", "", transpose=False, **FEW),
    portable("simdgroups share their k", "int(simdgroup * 4 + lane / 8)", "int(lane / 8)", transpose=False, **FEW),
    portable("no barrier after staging", STAGED, "      multiply_blocks"),
    portable(
        "no barrier before staging again", USED, USED.replace("threadgroup_barrier(mem_flags::mem_threadgroup)", "")
    ),
    portable(
        "tail of K not zeroed in the weights",
        "block_row < left.x && block_column < left.y",
        "block_row < left.x",
        format=NVFP4,
        K=336,
    ),
    portable(
        "weights read as they do not lie",
        "multiply_blocks<T, false, TRANSPOSED,",
        "multiply_blocks<T, false, !TRANSPOSED,",
    ),
    portable(
        "the batch of scales", "args.product, args.scales_batch_strides", "args.product, args.product.b_batch_strides"
    ),
    tensorops(
        "tail of K not zeroed in x",
        "const int count = row < rows ? columns - column : 0",
        "const int count = row < rows ? 4 : 0",
        transpose=False,
    ),
    tensorops("rows of x past the end", "const int count = row < rows ?", "const int count = row <= rows ?"),
    tensorops(
        "weights past the end",
        "return row < rows && column < columns ? load_four_weights",
        "return row <= rows && column < columns ? load_four_weights",
    ),
    tensorops("the half byte of five bits", "quantized_bits == 5 ? column & 4 : 0", "0", format=AFFINE5),
    tensorops(
        "a layout assumed", "  return run;\n", "  return i + 4 <= int(acc.get_capacity()) && first[0] >= 0;\n", M=100
    ),
    tensorops(
        "transposition forgotten", "descriptor(m, n, k, false, TRANSPOSED,", "descriptor(m, n, k, false, !TRANSPOSED,"
    ),
    tensorops("rows of fragments", "rows, m0 + i * m, k0", "rows, m0, k0"),
    tensorops(
        "no barrier after staging",
        "      threadgroup_barrier(mem_flags::mem_threadgroup);\n      MatmulView",
        "      MatmulView",
        M=100,
    ),
    tensorops(
        "no barrier before staging again",
        "      op.run(x_view, w_view, acc);\n      threadgroup_barrier(mem_flags::mem_threadgroup);",
        "      op.run(x_view, w_view, acc);",
        M=100,
    ),
    tensorops("K past its end", "min(product.K - k0, tile_k)", "tile_k", M=100),
    native("scales of the first tile", "Scales(scales + first_scale)", "Scales(scales)"),
    native("bytes for words", "w + words * int(sizeof(uint))", "w + words"),
    native("rows past the end", "dextents<int, 2>(product.K, n_left)", "dextents<int, 2>(product.K, TILE_N)"),
]


@pytest.mark.parametrize(
    ("family", "options"),
    [
        (PORTABLE, {"M": 3}),
        (PORTABLE, {"M": 3, "transpose": False}),
        *((family, {"M": 40, "transpose": way}) for family in (PORTABLE, TENSOROPS) for way in (True, False)),
        (TENSOROPS, {"M": 100}),
        (NATIVE, {"format": MXFP8}),
    ],
)
def test_the_kernels_themselves(family: str, options: dict[str, Any]) -> None:
    run(Problem(family, **options), source_of(family))


@pytest.mark.parametrize("transpose", [True, False])
def test_direct_kernels_without_runs_of_four(transpose: bool, tmp_path: Path) -> None:
    """The layout of 16 x 32 x 16 has runs of four everywhere: were it otherwise, slots would be filled one by one."""
    mutant = tensorops("no runs", "  return run;\n", "  return false;\n")
    run(Problem(TENSOROPS, transpose=transpose), source_of(mutant.family, plant(tmp_path, mutant)))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.family}: {mutant.name}")
def test_mutants_are_killed(mutant: Mutant, tmp_path: Path) -> None:
    source = source_of(mutant.family, plant(tmp_path, mutant))
    with pytest.raises((EmulatorError, AssertionError)):
        run(Problem(mutant.family, **mutant.problem), source)
