"""Bugs planted in the kernels of gated_delta and causal_conv1d: the emulator or the float64 oracle must notice each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlx_tessl._ext import plan as plans
from mlx_tessl.emulator.runtime import EmulatorError, Source, Updated

from ..ops import gated_delta_oracle as oracle
from ..ops.test_gated_delta import convolution_problem, problem
from .mutants import Mutant, bindings, launch_checked, plant, source_of

STARTS, LENGTHS = np.array([0, 2], np.int32), np.array([4, 5], np.int32)
RANGES = {"starts": plans.Operand([2]), "lengths": plans.Operand([2])}


def launched(
    source: Source, plan: plans.Plan, inputs: Sequence[np.ndarray], *shapes: tuple[int, ...]
) -> list[np.ndarray]:
    (launch,) = plan.launches
    outputs = [np.zeros(shape, np.float32) for shape in shapes]
    launch_checked(source, launch, bindings(launch, inputs, outputs))
    return outputs


def check_delta(source: Source, with_gates: bool) -> None:
    """Two rows of a ragged batch, two value heads to a key head, widths that are no multiples of anything."""
    arrays = problem(B=2, T=5, Hk=2, Hv=4, Dk=40, Dv=21)
    rng = np.random.default_rng(3)
    gates = {}
    inputs = list(arrays.values())
    if with_gates:
        a, b = (4 * rng.standard_normal((2, 5, 4)).astype(np.float32) for _ in range(2))
        A_log, dt_bias = (rng.standard_normal(4).astype(np.float32) for _ in range(2))
        arrays["g"], arrays["beta"] = oracle.gates(a, b, A_log, dt_bias)
        inputs[3:5] = [a, b]
        gates = {"A_log": plans.Operand([4]), "dt_bias": plans.Operand([4])}
    shapes = {name: plans.Operand(x.shape) for name, x in arrays.items()}
    plan = plans.gated_delta("float32", **shapes, **RANGES, **gates, normalize_qk=True)
    inputs += [STARTS, LENGTHS, *([A_log, dt_bias] if with_gates else [])]
    y, state = launched(source, plan, inputs, (2, 5, 4, 21), (2, 4, 21, 40))
    for b in range(2):
        span = slice(STARTS[b], LENGTHS[b])
        own = {n: x[b : b + 1] if n == "state" else x[b : b + 1, span] for n, x in arrays.items()}
        expected_y, expected_state = oracle.recurrence(**own, normalize_qk=True)
        assert np.abs(y[b : b + 1, span] - expected_y).max() <= 1e-5
        assert np.abs(state[b : b + 1] - expected_state).max() <= 1e-5
        assert not y[b, : STARTS[b]].any()
        assert not y[b, LENGTHS[b] :].any()


def check_chunks(source: Source, bound: float, **device: Any) -> None:
    """Two chunks, the second not full, of a row that does not begin at 0; a row of few tokens is left alone."""
    T, begin = 90, 3
    arrays = problem(B=2, T=T, Hk=1, Hv=2, Dk=24, Dv=21)
    starts, lengths = np.array([begin, 0], np.int32), np.array([T - 1, 5], np.int32)
    shapes = {name: plans.Operand(x.shape) for name, x in arrays.items()}
    plan = plans.gated_delta("float32", **shapes, **RANGES, normalize_qk=True, **device)
    y, state = np.full((2, T, 2, 21), 7, np.float32), np.full((2, 2, 21, 24), 7, np.float32)
    scratch = np.full(plan.scratch[0] // 4, np.nan, np.float32)
    hidden = {name: x.copy() for name, x in arrays.items()}
    for name in ("q", "k", "v", "g", "beta"):
        hidden[name][0, :begin] = hidden[name][0, T - 1 :] = np.nan
    inputs = [*hidden.values(), starts, lengths]
    for launch in plan.launches[:2]:
        launch_checked(source, launch, bindings(launch, inputs, (y, state), (scratch,), written=Updated))
    span = slice(begin, T - 1)
    own = {n: x[:1] if n == "state" else x[:1, span] for n, x in arrays.items()}
    expected_y, expected_state = oracle.recurrence(**own, normalize_qk=True)
    assert np.abs(y[:1, span] - expected_y).max() <= bound
    assert np.abs(state[:1] - expected_state).max() <= bound
    assert not y[0, :begin].any()
    assert not y[0, T - 1 :].any()
    assert np.all(y[1] == 7)
    assert np.all(state[1] == 7)


def check_convolution(source: Source) -> None:
    x, weight, before = convolution_problem(2, 6, C=70)
    operands = [plans.Operand(a.shape) for a in (x, weight)]
    plan = plans.causal_conv1d("float32", *operands, state=plans.Operand(before.shape), **RANGES)
    y, last = launched(source, plan, [x, weight, before, STARTS, LENGTHS], (2, 6, 70), (2, 3, 70))
    for b in range(2):
        span = slice(STARTS[b], LENGTHS[b])
        expected_y, expected_last = oracle.convolution(x[b : b + 1, span], weight, before[b : b + 1])
        assert np.abs(y[b : b + 1, span] - expected_y).max() <= 1e-5
        assert np.array_equal(last[b : b + 1], expected_last.astype(np.float32))
        assert not y[b, : STARTS[b]].any()
        assert not y[b, LENGTHS[b] :].any()


def delta(name: str, original: str, planted: str) -> Mutant:
    return Mutant("gated_delta", name, original, planted)


def chunks(name: str, original: str, planted: str) -> Mutant:
    return Mutant("gated_delta_chunks", name, original, planted)


def tensorops(name: str, original: str, planted: str) -> Mutant:
    return Mutant("gated_delta_tensorops", name, original, planted)


def convolution(name: str, original: str, planted: str) -> Mutant:
    return Mutant("causal_conv1d", name, original, planted)


MUTANTS = [
    delta("the key head of each value head", "head / (args.Hv / args.Hk)", "head % args.Hk"),
    delta("columns past the end are read", "column < count ? float(source", "column < count + 1 ? float(source"),
    delta("columns past the end are written", "r < rows && column < args.Dk", "r < rows"),
    delta("rows past the end are written", "if (lane < rows) {", "if (lane < state_rows) {"),
    delta("tokens before the first", "t >= range.x && t < range.y", "t < range.y"),
    delta("tokens after the last", "t >= range.x && t < range.y", "t >= range.x"),
    delta("a range that ends one late", "lengths[row * lengths_stride], 0", "lengths[row * lengths_stride] + 1, 0"),
    delta("u without the decay", "- gate.x * along_k)", "- along_k)"),
    delta("y before the update", "gate.x * along_q + u * key_dot_query", "gate.x * along_q"),
    delta("keys not normalized", "scale_row(keys,", "if (false) scale_row(keys,"),
    delta("queries not scaled", "query_scale * precise", "precise"),
    delta("the state of the next row", "batch, head, first_row + r);", "batch, head, first_row + r + 1);"),
    delta("rows of another simdgroup", "int(simdgroup)) * state_rows", "int(simdgroup) / 2) * state_rows"),
    delta("softplus by its first term", "2.0f * metal::fma(p * square, z, z)", "2.0f * z"),
    delta("a decay that grows", "exp(-metal::precise::exp(A_log)", "exp(metal::precise::exp(A_log)"),
    chunks(
        "decays from the token itself",
        "for (int i = thread_index + 1; i < C; ++i) {",
        "for (int i = thread_index; i < C; ++i) {",
    ),
    chunks(
        "the strength of the column",
        "*= vectors.strength[i] * vectors.key_factors[i] * weight",
        "*= vectors.strength[thread_index] * vectors.key_factors[i] * weight",
    ),
    chunks("an inverse of one step", "sum += row[l] * matrix[l * matrix_pitch + own_row];", ""),
    chunks("halves that overlap", "int l = own_row + 1 + own_half;", "int l = own_row + 1;"),
    chunks(
        "no barrier before a row is replaced",
        "ushort(1));\n    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);\n    if",
        "ushort(1));\n    if",
    ),
    chunks(
        "no barrier after a row is replaced",
        "= -sum;\n    }\n    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);",
        "= -sum;\n    }",
    ),
    chunks("scores of later tokens", "i >= thread_index ? score : 0.0f", "score"),
    chunks("decays until the end", "until_end *= i > thread_index", "until_end *= i >= thread_index"),
    chunks("decays since the start", "since_start *= i <= thread_index", "since_start *= i < thread_index"),
    chunks(
        "the next chunk's preparation",
        "prepared_offset(args, batch, head, chunk);",
        "prepared_offset(args, batch, head, 0);",
    ),
    chunks("chunks from token 0", "const int first = range.x + chunk * C;", "const int first = chunk * C;"),
    chunks(
        "tokens past the end",
        "int place = column + i % COLUMNS;\n    float x = 0.0f;\n    if (row < tokens && place",
        "int place = column + i % COLUMNS;\n    float x = 0.0f;\n    if (place",
    ),
    chunks("columns past the end", "row < tokens && place < width", "row < tokens"),
    chunks(
        "no barrier after staging",
        "threadgroup_barrier(mem_flags::mem_threadgroup);\n      simdgroup_float8x8 sum",
        "simdgroup_float8x8 sum",
    ),
    chunks(
        "keys not scaled for the state", "U[place] *= factors.D[row] * factors.keys[row]", "U[place] *= factors.D[row]"
    ),
    chunks("a state that does not decay", "i % most_columns] *= whole_decay", "i % most_columns] *= 1.0f"),
    chunks("a triangle too small", ": first_row + simdgroup_rows;", ": first_row + simdgroup_rows - fragment_size;"),
    chunks(
        "few tokens taken too",
        "if (!delta_for_gradients && range.y - range.x < GATED_DELTA_FEW_TOKENS) {\n    return;\n  }\n  const int64_t",
        "const int64_t",
    ),
    chunks(
        "fragments of the state swapped", "int(simdgroup / 2) * fragment_size", "int(simdgroup % 2) * fragment_size"
    ),
    tensorops("queries for keys", "key_products[half], keys, first_row", "key_products[half], queries, first_row"),
    tensorops(
        "half of the scores", "first_row, keys, half * 32, args.Dk);\n    add", "first_row, keys, 0, args.Dk);\n    add"
    ),
    tensorops("squares of half a row", "column < args.Dk; column += 8", "column < args.Dk; column += 16"),
    tensorops(
        "tokens past the end",
        "const int count = row < tokens ? columns - column : 0;",
        "const int count = columns - column;",
    ),
    tensorops("U without beta", "factors.strengths[row] * (value", "(value"),
    tensorops(
        "no barrier before U is replaced",
        "lower_columns);\n    threadgroup_barrier(mem_flags::mem_threadgroup);\n    store",
        "lower_columns);\n    store",
    ),
    tensorops("a state that does not decay", "whole_decay * strip", "strip"),
    tensorops("a state that is not updated", "column < args.Dk; column += C", "column < args.Dk - C; column += C"),
    tensorops("U that does not decay", "{{U}, factors.D,", "{{U}, factors.E,"),
    tensorops("a triangle too small", "= first_row + simdgroup_rows;", "= first_row;"),
    convolution("weights from the wrong end", "j * args.weight", "(args.K - 1 - j) * args.weight"),
    convolution("a state that begins at token 0", "t >= begin)", "t >= 0)"),
    convolution("the rows kept", "range.y - (args.K - 1) + kept", "args.T - (args.K - 1) + kept"),
    convolution("channels past the end", "channel >= args.C || ", ""),
    convolution("rows past the end", "t >= args.T + args.K - 1", "t > args.T + args.K - 1"),
    convolution("no silu", "conv_with_silu ? silu(sum) : sum", "sum"),
]


def check(family: str, source: Source) -> None:
    if family == "causal_conv1d":
        check_convolution(source)
    elif family == "gated_delta_chunks":
        check_chunks(source, 1e-5)
    elif family == "gated_delta_tensorops":
        check_chunks(source, 1e-2, relaxed=True, gpu="m5", macos="26.4")  # seen: 3e-3
    else:
        check_delta(source, with_gates=False)
        check_delta(source, with_gates=True)


@pytest.mark.parametrize("family", ["gated_delta", "gated_delta_chunks", "gated_delta_tensorops", "causal_conv1d"])
def test_the_kernels_themselves(family: str) -> None:
    check(family, source_of(family))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.family}: {mutant.name}")
def test_mutants_are_killed(mutant: Mutant, tmp_path: Path) -> None:
    root = plant(tmp_path, mutant)
    with pytest.raises((EmulatorError, AssertionError)):
        check(mutant.family, source_of(mutant.family, root))
