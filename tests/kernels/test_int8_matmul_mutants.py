"""Bugs planted in the int8 kernels: the emulator or the exact oracle must notice each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mlx_tessl._ext import plan as plans
from mlx_tessl.emulator.runtime import EmulatorError, Source

from ..ops.conformance.int8_matmul import codes
from .mutants import Mutant, bindings, launch_checked, plant, source_of

DEVICES = {"int8_matmul": ("m1", "15.0"), "int8_matmul_tensorops": ("m5-pro", "26.4")}
M, N, K = 40, 46, 2152  # of two members that start on 16 bytes; ragged, and K longer than float32 sums are exact


def run(family: str, source: Source, *, scaled: bool) -> None:
    """An exact product of a batch, or one with all of the epilogue."""
    a, b = codes(2, M, K), codes(2, K, N, seed=1)
    a[0, 0, 1:], b[0, 1:, 0] = -128, 127
    a[0, 0, 0] = b[0, 0, 0] = 1  # an odd sum beyond 2^24
    rng = np.random.default_rng(0)
    scale_a, bias, scale_b = (rng.standard_normal(s).astype(np.float32) for s in ((2, M, 1), (N,), (2, 1, N)))
    operands = {"scale_a": scale_a, "bias": bias, "scale_b": scale_b} if scaled else {}
    gpu, macos = DEVICES[family]
    plan = plans.int8_matmul(
        "float32" if scaled else "int32",
        plans.Operand(a.shape),
        plans.Operand(b.shape),
        activation="relu" if scaled else None,
        gpu=gpu,
        macos=macos,
        **{name: plans.Operand(x.shape) for name, x in operands.items()},
    )
    (launch,) = plan.launches
    assert launch.family == family
    inputs = [a, b, *operands.values()]
    out = np.zeros((2, M, N), np.float32 if scaled else np.int32)
    launch_checked(source, launch, bindings(launch, inputs, [out]))
    sums = a.astype(np.int64) @ b.astype(np.int64)
    if scaled:
        z = sums * scale_a.astype(np.float64) * scale_b
        assert np.all(np.abs(out - np.maximum(z + bias, 0)) <= 2.0**-21 * (np.abs(z) + np.abs(bias)))
    else:
        assert np.array_equal(out, sums)


def portable(name: str, original: str, planted: str, *, scaled: bool = False) -> Mutant:
    return Mutant("int8_matmul", name, original, planted, {"scaled": scaled})


def tensorops(name: str, original: str, planted: str, *, scaled: bool = False) -> Mutant:
    return Mutant("int8_matmul_tensorops", name, original, planted, {"scaled": scaled})


MUTANTS = [
    portable("sums kept in float32 for too long", "exact_k = 1024", "exact_k = 4096"),
    portable("the last sums forgotten", "  }\n  add_to_totals(totals, acc);\n", "  }\n"),
    portable("sums counted twice", "        clear(acc);\n      }", "      }"),
    portable("low bits lost", "total & ((1 << low_bits) - 1)", "total & ((1 << (low_bits - 1)) - 1)"),
    portable("high bits not put back", "integers * (1 << low_bits)", "integers"),
    portable(
        "no barrier before the strip is read",
        "      simdgroup_barrier(mem_flags::mem_threadgroup);\n#pragma clang loop unroll(full)\n      for (int s",
        "#pragma clang loop unroll(full)\n      for (int s",
    ),
    portable(
        "rows and columns of a quad swapped",
        "const int row = i * fragment_size + q / quads",
        "const int row = i * fragment_size + q % quads",
    ),
    portable(
        "scale of another row",
        "scale_a, args->scale_a, row, column",
        "scale_a, args->scale_a, column, row",
        scaled=True,
    ),
    portable(
        "scale of another column",
        "scale_b, args->scale_b, row, column",
        "scale_b, args->scale_b, column, row",
        scaled=True,
    ),
    portable(
        "scales of the first member",
        "args.product, args.scale_a.batch_strides",
        "args.product, args.scale_b.batch_strides",
        scaled=True,
    ),
    portable("rows past the edge", "if (row < left.x && column < left.y) {", "if (column < left.y) {"),
    tensorops("accumulator not zeroed", "    acc[i] = 0;\n", ""),
    tensorops("K past its end", "const int k = min(k_left, block_k)", "const int k = block_k"),
    tensorops("a block of b skipped", "int64_t(block_k) : block_k * product.ldb", "0 : 0"),
    tensorops("scale left out", "x *= *matmul_addend_at(scale_b", "x = *matmul_addend_at(scale_b", scaled=True),
]


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("family", DEVICES)
def test_the_kernels_themselves(family: str, scaled: bool) -> None:
    run(family, source_of(family), scaled=scaled)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.family}: {mutant.name}")
def test_mutants_are_killed(mutant: Mutant, tmp_path: Path) -> None:
    root = plant(tmp_path, mutant)
    with pytest.raises((EmulatorError, AssertionError)):
        run(mutant.family, source_of(mutant.family, root), **mutant.problem)
