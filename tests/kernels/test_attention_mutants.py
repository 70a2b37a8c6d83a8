"""Bugs planted in the attention kernels: the emulator or the float64 oracle must notice each."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlx_tessl.emulator.runtime import EmulatorError

from .attention_problems import ROOT, Problem
from .mutants import plant
from .test_attention_kernels import (
    FEATURES,
    KINDS,
    check_almost_hidden,
    check_forward,
    check_gradients,
    forward,
    poison_hidden,
)


@dataclass
class Mutant:
    """A change of one place; `kernel` is part of the names of the kernels that get it."""

    family: str
    kernel: str
    name: str
    original: str
    planted: str
    problem: dict[str, Any] = field(default_factory=dict)


def tiles(name: str, original: str, planted: str, **problem: Any) -> Mutant:
    return Mutant("attention", "attention_tiles", name, original, planted, problem)


def vectors(name: str, original: str, planted: str, **problem: Any) -> Mutant:
    return Mutant("attention", "attention_", name, original, planted, {"Tq": 2, "Tk": 40, "D": 36} | problem)


def tensorops(name: str, original: str, planted: str, **problem: Any) -> Mutant:
    return Mutant("attention_tensorops", "", name, original, planted, KINDS["tensorops"] | problem)


def gradient(kernel: str, name: str, original: str, planted: str, **problem: Any) -> Mutant:
    return Mutant("attention_grad", f"grad_{kernel}", name, original, planted, problem)


def tensorops_gradient(kernel: str, name: str, original: str, planted: str, **problem: Any) -> Mutant:
    everything = KINDS["tensorops"] | problem
    return Mutant("attention_grad_tensorops", f"tensorops_{kernel}", name, original, planted, everything)


CAUSAL: dict[str, Any] = {"causal": True, "Tq": 35, "Tk": 40}
# Tiles of 32 begin right where a window does.
NARROW: dict[str, Any] = {"Tq": 40, "Tk": 40, "window": (1, 0)}
HIDDEN_NANS: dict[str, Any] = {"mask": "bool", "lengths": (70, 13), "change": poison_hidden("v")}
TALL: dict[str, Any] = {"Tq": 5, "Tk": 40, "D": 256, "heads": 2, "B": 1, "mask": "bool"}
SPLITS: dict[str, Any] = {"Tk": 1100, "B": 1, "heads": 1}
GROUPS: dict[str, Any] = {"heads": 4, "kv_heads": 2, "B": 1, "Tq": 12, "Tk": 20}
BARRIER = "metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);\n"

MUTANTS = [
    tiles("causal mask shifted", "distance <= reach_right &&", "distance < reach_right &&", **CAUSAL),
    tiles("window one too short", "&& -distance <= reach_left", "&& -distance < reach_left", **FEATURES["window"]),
    tiles("causal from the left", "= args.P + args.Tk - args.Tq;", "= args.P;", **CAUSAL),
    tiles(
        "last block left out",
        "queries.end + diagonal + reach_right)",
        "queries.end + diagonal + reach_right - 1)",
        causal=True,
        Tq=33,
        Tk=33,
    ),
    tiles("first block left out", "diagonal - reach_left);", "diagonal + 1 - reach_left);", **NARROW),
    tiles("a block is seen that is not", "keys.end - 1 - (queries.first", "keys.first - (queries.first", **CAUSAL),
    tiles("skipped too far", "first_own / size * size", "(first_own / size + 1) * size", **FEATURES["starts"]),
    tiles(
        "lengths hide the prefix",
        "return key < prefix || (key >= first_own && key < end_own);",
        "return key >= first_own && key < end_own;",
        **FEATURES["prefix_window"],
    ),
    tiles("sums not rescaled", "scale_sums(sums, factor, team);", ""),
    tiles("denominator not rescaled", "      l *= factor;\n", ""),
    tiles("the maximum is not saved", "ends[2 * query] = end.m;", "ends[2 * query] = 0.0f;"),
    tiles(
        "sink left out of the denominator",
        "+ metal::fast::exp2(metal::max(sink * log2_e - best, -1000.0f))",
        "",
        **FEATURES["sinks"],
    ),
    tiles("softcap not given back", "? softcap * tanh(dot)", "? tanh(dot)", softcap=2.5),
    tiles("softmax to the base 2", "score += addend * log2_e;", "score += addend;", **FEATURES["additive"]),
    tiles(
        "no barrier after staging", f"others, other, d, team);\n    {BARRIER}", "others, other, d, team);\n", **CAUSAL
    ),
    tiles(
        "no barrier before staging again",
        f"      }}\n    }}\n    {BARRIER}  }}\n}}\n\n// Hands",
        "      }\n    }\n  }\n}\n\n// Hands",
        **CAUSAL,
    ),
    tiles(
        "no barrier before scores are read",
        "  team.strip_barrier();\n  threadgroup const float* p",
        "  threadgroup const float* p",
        **CAUSAL,
    ),
    tiles(
        "hidden NaN counts", "weight != 0.0f && !is_number(value) ? weight", "!is_number(value) ? weight", **HIDDEN_NANS
    ),
    tiles("NaN not noticed", "exceptions = !metal::simd_all(numbers)", "exceptions = false", **HIDDEN_NANS),
    tiles("the wrong keys' head", "head / uint(args.heads / args.kv_heads)", "head % uint(args.kv_heads)", **GROUPS),
    tiles(
        "one head's mask", "row * args.mask.batch + head * args.mask.head", "row * args.mask.batch", mask="bool", B=1
    ),
    tiles("rows past the end are stored", "own_row < rows && at < columns", "at < columns", **CAUSAL),
    tiles(
        "the prefix by own strides",
        "? prefix + row * prefix_stride :",
        "? prefix + row * own_stride :",
        P=37,
        layout="bhdt",
    ),
    vectors("a shuffle forgotten", "step < LANES; step", "step < LANES / 2; step"),
    vectors("keys left out", "key += teams)", "key += 2 * teams)"),
    vectors(
        "no barrier before teams are added",
        "    threadgroup_barrier(mem_flags::mem_threadgroup);\n    if (first_row + r < rows) {",
        "    if (first_row + r < rows) {",
    ),
    vectors(
        "no barrier before the next row",
        "      }\n    }\n    threadgroup_barrier(mem_flags::mem_threadgroup);\n  }\n}",
        "      }\n    }\n  }\n}",
    ),
    vectors("splits overlap", "split * args.split_keys", "split * (args.split_keys - 32)", **SPLITS),
    vectors("splits not rescaled", "args.Dv + column] * factor;", "args.Dv + column];", **SPLITS),
    tensorops("sums not rescaled", "sums[t][i] *= factors[i];", ""),
    tensorops(
        "zero as the identity of max",
        "reduction_operation::max, hidden_score)",
        "reduction_operation::max, 0.0f)",
        **FEATURES["causal_short"],
    ),
    tensorops(
        "a strip stays out too early",
        "key < seen_by_strip.end &&",
        "key + Tile::block < seen_by_strip.end &&",
        **CAUSAL,
    ),
    tensorops("every column saves its end", "at[0] == 0 && query < args.Tq", "query < args.Tq", **CAUSAL),
    tensorops("half of the values twice", "other + 16, first)", "other, first)", **CAUSAL),
    tensorops("half of the weights twice", "T(weights[half * (cooperative_slots / 2) + i])", "T(weights[i])", **CAUSAL),
    tensorops("hidden NaN counts", "if (weight != 0.0f && !is_number(value))", "if (!is_number(value))", **HIDDEN_NANS),
    tensorops(
        "no barrier before parts are added",
        f"products[i];\n    }}\n    {BARRIER}",
        "products[i];\n    }\n",
        **TALL | {"Tq": 17},
    ),
    tensorops(
        "one part for all",
        "team.strip_products[p * Tile::region",
        "team.strip_products[0 * Tile::region",
        **TALL | {"Tq": 17},
    ),
    gradient("queries", "delta left out", "* (dweight - saved.delta)", "* dweight", **CAUSAL),
    gradient("queries", "softcap is not differentiated", " * (1.0f - t * t)", "", softcap=2.5, **CAUSAL),
    gradient("queries", "scale left out", "args.D, sums, args.scale, team)", "args.D, sums, 1.0f, team)", **CAUSAL),
    gradient("queries", "weights not divided", "0.0f : exponent) * inverse", "0.0f : exponent)", **CAUSAL),
    gradient("keys", "weights for their gradient", "          write_weights<Tile>(by_dot, team);\n", "", **CAUSAL),
    gradient(
        "keys",
        "first queries left out",
        "metal::max(0, keys.first - diagonal - reach_right)",
        "metal::max(0, keys.first - diagonal + 1 - reach_right)",
        causal=True,
        Tq=45,
        Tk=46,
    ),
    gradient(
        "keys",
        "last queries left out",
        "keys.end - diagonal + reach_left",
        "keys.end - diagonal - 1 + reach_left",
        **NARROW,
    ),
    gradient("keys", "one head for all", "kv_head * uint(heads) + uint(h)", "kv_head * uint(heads)", **GROUPS),
    gradient("keys", "one row's prefix", "uint(args.B) : group.z + 1u", "1u : group.z + 1u", P=5, **CAUSAL),
    gradient("mask", "a strip left out", "s < 4; ++s", "s < 3; ++s", mask="additive", mask_shape=(1, 40), **CAUSAL),
    gradient(
        "mask",
        "no barrier before strips are added",
        "    threadgroup_barrier(mem_flags::mem_threadgroup);\n    for (int j",
        "    for (int j",
        mask="additive",
        mask_shape=(1, 40),
        **CAUSAL,
    ),
    gradient("sinks", "the sign", "sum -= x.weight(", "sum += x.weight(", sinks=True, **CAUSAL),
    tensorops_gradient("queries", "one row's end", "saved.at(query), keys", "saved.at(first_query), keys", **CAUSAL),
    tensorops_gradient(
        "keys", "weights for their gradient", "(dk_sums, by_dot, dots", "(dk_sums, weights, dots", **CAUSAL
    ),
    tensorops_gradient(
        "keys", "rows for columns", "first_key + at[1], seen_all", "first_key + at[0], seen_all", **CAUSAL
    ),
]


PROBLEMS = {(mutant.family, str(mutant.problem)): mutant for mutant in MUTANTS}


def examine(mutant: Mutant, root: Path) -> None:
    """Raises where the mutant shows."""
    problem = Problem(**mutant.problem)
    if "grad" in mutant.family:
        check_gradients(problem, root=root, only=mutant.kernel)
    elif "change" in mutant.problem:
        out, _ = forward(problem, root=root)
        assert np.isfinite(out[0, :, :40]).all()
        assert np.isfinite(out[1]).all()
        assert not np.isfinite(out[0, :, 40:]).all(-1).any()
    else:
        check_forward(problem, root=root)


@pytest.mark.parametrize("mutant", PROBLEMS.values(), ids=lambda mutant: f"{mutant.family}: {mutant.name}")
def test_the_kernels_themselves(mutant: Mutant) -> None:
    examine(mutant, ROOT)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.family}: {mutant.name}")
def test_mutants_are_killed(mutant: Mutant, tmp_path: Path) -> None:
    root = plant(tmp_path, mutant)
    with pytest.raises((EmulatorError, AssertionError)):
        examine(mutant, root)


@pytest.mark.parametrize(("kind", "dtype"), [("portable", "float32"), ("tensorops", "bfloat16")])
def test_a_log_sum_of_float32_drowns(kind: str, dtype: str, tmp_path: Path) -> None:
    """Far from zero m + log l is m: weights would be 1, not 1 / n."""
    root = plant(
        tmp_path,
        gradient(
            "",
            "one number saved",
            "row.m = end[0];\n      row.inverse = l == 0.0f ? 0.0f : 1.0f / l;",
            "row.m = l == 0.0f ? end[0] : end[0] + metal::log2(l);\n      row.inverse = l == 0.0f ? 0.0f : 1.0f;",
        ),
    )
    with pytest.raises(AssertionError):
        check_almost_hidden(kind, dtype, root=root, only="queries")


@pytest.mark.parametrize("feature", ["causal_short", "everything"])
def test_layouts_that_differ(feature: str, tmp_path: Path) -> None:
    """Scores, left inputs and sums lie alike in 16 x 32 x 16: were it otherwise, weights would pass through memory."""
    root = plant(tmp_path, tensorops("not alike", "return metal::simd_all(alike);", "return false;"))
    problem = Problem(**KINDS["tensorops"], **FEATURES[feature])
    check_forward(problem, root=root)
    check_gradients(problem, root=root, only="tensorops")
