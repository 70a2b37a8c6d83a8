"""Bugs planted in the sparse_max_pool kernels: the emulator or the float64 oracle must notice each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlx_tessl._ext import plan as plans
from mlx_tessl.emulator.runtime import EmulatorError

from ..ops.conformance.sparse_max_pool import sparse_max_pool_oracle
from .mutants import Mutant, plant, run, source_of

PORTABLE, TENSOROPS = "sparse_max_pool", "sparse_max_pool_tensorops"
DEVICES = {PORTABLE: ("m1", "15.0"), TENSOROPS: ("m5-pro", "26.4")}


@dataclass
class Problem:
    """Rows of two tiles of tokens and of few, two tiles of words, units in several blocks of either family."""

    family: str
    pooling: str = "max"
    activation: str = "log1p_relu"
    tokens: int = 70
    words: int = 75
    units: int = 300
    batch: int = 3

    def __post_init__(self) -> None:
        self.M, self.N = 1, self.words  # of an output
        rng = np.random.default_rng(0)
        self.hidden = rng.standard_normal((self.batch, self.tokens, self.units)).astype(np.float32)
        self.weight = rng.standard_normal((self.words, self.units)).astype(np.float32)
        self.bias = rng.standard_normal(self.words).astype(np.float32)
        self.lengths = np.array([2, 0, self.tokens], np.int32)
        self.hidden[0, 2:] = 10  # padding that would win

    def plan(self) -> plans.Plan:
        gpu, macos = DEVICES[self.family]
        call = plans.SparseMaxPool(
            "float32",
            *(plans.Operand(x.shape) for x in self.inputs()),
            activation=1 if self.activation == "log1p_relu" else 2,
            sums=self.pooling == "sum",
            gpu=gpu,
            macos=macos,
        )
        plan = call.plan()
        assert [launch.family for launch in plan.launches] == [self.family]
        return plan

    def inputs(self) -> list[np.ndarray]:
        return [self.hidden, self.weight, self.bias, self.lengths]

    def oracle(self) -> tuple[np.ndarray, np.ndarray]:
        hidden, weight, bias = (x.astype(np.float64) for x in self.inputs()[:3])
        options: dict[str, Any] = {"pooling": self.pooling, "activation": self.activation}
        expected, magnitude = sparse_max_pool_oracle(hidden, weight, bias, self.lengths, **options)
        return expected[:, None], magnitude[:, None]

    def expected(self) -> np.ndarray:
        return self.oracle()[0]

    def allowed(self) -> np.ndarray:
        return (self.units + self.tokens + 16) * 2.0**-24 * self.oracle()[1] + 1e-6


def portable(name: str, original: str, planted: str, **problem: Any) -> Mutant:
    return Mutant(PORTABLE, name, original, planted, problem)


def tensorops(name: str, original: str, planted: str, **problem: Any) -> Mutant:
    return Mutant(TENSOROPS, name, original, planted, problem)


SUM = {"pooling": "sum"}
SHARES = "    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);\n    if (thread_index >= pool_words)"
BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);\n"

MUTANTS = [
    portable("length ignored", "metal::clamp(lengths[row * args.length_stride], 0, args.tokens)", "args.tokens"),
    portable("odd tokens forgotten", "token += 2)", "token += 4)"),
    portable("the other thread's share forgotten", "combine(pooled, shared[thread_index])", "pooled"),
    portable("a maximum from zero", "sparse_sums ? 0.0f : -INFINITY", "0.0f"),
    portable("minimum for maximum", "return b > a || b != b ? b : a;", "return b < a || b != b ? b : a;"),
    portable("bias forgotten", "sparse_activate(both + bias)", "sparse_activate(both)"),
    portable("bias once a row", "sparse_activate(logit + bias) : logit", "sparse_activate(logit) : logit", **SUM),
    portable("activation forgotten", "sparse_sums ? both : sparse_activate(both + bias)", "both"),
    portable("no relu", "log_one_plus(relu(logit))", "log_one_plus(metal::fabs(logit))"),
    portable("tokens past the end", "min(TILE_T, length - token), int(thread_index))", "TILE_T, int(thread_index))"),
    portable("the first tile of tokens again", "token * args.token_stride", "0"),
    portable("words past the end", "left(words_left, args.units - k)", "left(64, args.units - k)"),
    portable("units past the end", "(length - token, args.units - k)", "(length - token, tile_k)"),
    portable("no barrier after staging", BARRIER + "      multiply_blocks", "      multiply_blocks"),
    portable("no barrier before pooling", BARRIER + "    pool.add", "    pool.add"),
    portable("no barrier after pooling", f"int(thread_index));\n    {BARRIER}  }}", "int(thread_index));\n  }"),
    portable("no barrier between the shares", SHARES, SHARES.replace("metal::threadgroup_barrier", "(void)")),
    portable("stores past the last word", "min(words_left, pool_words)) {", "pool_words) {"),
    tensorops("slots transposed", "logits[at[1] * Logits::pitch + at[0]]", "logits[at[0] * Logits::pitch + at[1]]"),
    tensorops("a layout assumed", "logits[at[1] * Logits::pitch + at[0]]", "logits[i % 64 * Logits::pitch + at[0]]"),
    tensorops("units past the end", "min(args.units - k, sparse_block_k)", "sparse_block_k"),
    tensorops("the first units again", "matmul_view(words + k", "matmul_view(words"),
    tensorops("sums of the last tile kept", "acc[i] = 0.0f;", "acc[i] = acc[i];"),
    tensorops("no barrier before pooling", BARRIER + "    pool.add", "    pool.add"),
]


@pytest.mark.parametrize("family", DEVICES)
@pytest.mark.parametrize("options", [{}, SUM, {"activation": "log1p_log1p_relu"}], ids=["max", "sum", "double"])
def test_the_kernels_themselves(family: str, options: dict[str, Any]) -> None:
    run(Problem(family, **options), source_of(family))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.family}: {mutant.name}")
def test_mutants_are_killed(mutant: Mutant, tmp_path: Path) -> None:
    source = source_of(mutant.family, plant(tmp_path, mutant))
    with pytest.raises((EmulatorError, AssertionError)):
        run(Problem(mutant.family, **mutant.problem), source)
