"""Bugs planted in the gradients of gated_delta and causal_conv1d: the emulator or float64 must notice each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest

from mlx_tessl._ext import plan as plans
from mlx_tessl.emulator.runtime import EmulatorError, Source, Updated

from ..ops import gated_delta_oracle as oracle
from ..ops.test_gated_delta import convolution_problem, problem
from .mutants import Mutant, bindings, launch_checked, plant, source_of

Arrays = dict[str, np.ndarray]


@dataclass
class Ragged:
    """A planned gradient of a batch whose rows lie in spans; other tokens hold NaN and have gradients of zero."""

    plan: plans.Plan
    inputs: list[np.ndarray]
    expected: list[np.ndarray]

    def begin(self) -> list[np.ndarray]:
        """The outputs, then the scratch, before the first launch."""
        shapes = [x.shape for x in self.expected] + [(nbytes // 4,) for nbytes in self.plan.scratch]
        return [np.full(shape, np.nan, np.float32) for shape in shapes]

    def launch(self, index: int, memory: list[np.ndarray], source: Source | None = None) -> None:
        launch, count = self.plan.launches[index], len(self.expected)
        buffers = bindings(launch, self.inputs, memory[:count], memory[count:], written=Updated)
        launch_checked(source or source_of(launch.family), launch, buffers)


def hidden(x: np.ndarray, spans: list[slice]) -> np.ndarray:
    result = np.full_like(x, np.nan)
    for row, span in enumerate(spans):
        result[row, span] = x[row, span]
    return result


def operands(*arrays: np.ndarray) -> list[plans.Operand]:
    return [plans.Operand(x.shape) for x in arrays]


@cache
def delta() -> Ragged:
    """Two chunks, the second not full, and a row of few tokens; two value heads to a key head, odd widths."""
    T, spans = 74, [slice(3, 73), slice(0, 5)]
    arrays = problem(B=2, T=T, Hk=2, Hv=4, Dk=40, Dv=21)
    rng = np.random.default_rng(3)
    dy, dstate = (rng.standard_normal(arrays[name].shape).astype(np.float32) for name in ("v", "state"))
    expected = {name: np.zeros(x.shape) for name, x in arrays.items()}
    for row, span in enumerate(spans):
        own = {n: x[row : row + 1] if n == "state" else x[row : row + 1, span] for n, x in arrays.items()}
        gradients = oracle.recurrence_gradients(
            **own, dy=dy[row : row + 1, span], dstate=dstate[row : row + 1], normalize_qk=True
        )
        for name, gradient in gradients.items():
            expected[name][row, slice(None) if name == "state" else span] = gradient[0]
    starts, lengths = (np.array([getattr(span, end) for span in spans], np.int32) for end in ("start", "stop"))
    plan = plans.gated_delta_grad(
        "float32",
        *operands(*arrays.values(), dy, dstate),
        starts=plans.Operand([2]),
        lengths=plans.Operand([2]),
        normalize_qk=True,
    )
    poisoned = [x if name == "state" else hidden(x, spans) for name, x in arrays.items()]
    return Ragged(plan, [*poisoned, starts, lengths, hidden(dy, spans), dstate], [*expected.values()])


@cache
def convolution() -> Ragged:
    """Two blocks of tokens, and a row of few."""
    T, spans = 260, [slice(2, 259), slice(0, 2)]
    x, weight, state = convolution_problem(2, T, C=5)
    rng = np.random.default_rng(3)
    dy, dlast = (rng.standard_normal(a.shape).astype(np.float32) for a in (x, state))
    expected = {name: np.zeros(a.shape) for name, a in (("x", x), ("weight", weight), ("state", state))}
    for row, span in enumerate(spans):
        gradients = oracle.convolution_gradients(
            x[row : row + 1, span], weight, state[row : row + 1], dy[row : row + 1, span], dlast[row : row + 1]
        )
        expected["x"][row, span] = gradients["x"][0]
        expected["weight"] += gradients["weight"]
        expected["state"][row] = gradients["state"][0]
    starts, lengths = (np.array([getattr(span, end) for span in spans], np.int32) for end in ("start", "stop"))
    plan = plans.causal_conv1d_grad(
        "float32",
        *operands(x, weight, dy, dlast),
        state=plans.Operand(state.shape),
        starts=plans.Operand([2]),
        lengths=plans.Operand([2]),
    )
    inputs = [hidden(x, spans), weight, state, starts, lengths, hidden(dy, spans), dlast]
    return Ragged(plan, inputs, [*expected.values()])


@cache
def before(family: str, index: int) -> tuple[Ragged, list[np.ndarray]]:
    """What is there before launch `index`, from the kernels as they are."""
    if index == 0:
        ragged = delta() if family == "gated_delta_grad" else convolution()
        return ragged, ragged.begin()
    ragged, memory = before(family, index - 1)
    memory = [x.copy() for x in memory]
    ragged.launch(index - 1, memory)
    return ragged, memory


def check(family: str, kernel: str, source: Source) -> None:
    """The launch of one kernel, from a source that may hold a bug, and those that follow it."""
    plan = before(family, 0)[0].plan
    index = next(i for i, launch in enumerate(plan.launches) if kernel in launch.kernel)
    ragged, memory = before(family, index)
    memory = [x.copy() for x in memory]
    for i in range(index, len(plan.launches)):
        ragged.launch(i, memory, source if i == index else None)
    for output, expected in zip(memory, ragged.expected, strict=False):
        assert np.abs(output - expected).max() <= 1e-5 * np.abs(expected).max()


def planted_in(kernel: str, name: str, original: str, planted: str) -> Mutant:
    return Mutant(kernel[: kernel.index("_grad_") + 5], name, original, planted, {"kernel": kernel})


of_scan = partial(planted_in, "gated_delta_grad_scan")
of_scores = partial(planted_in, "gated_delta_grad_scores")
of_rows = partial(planted_in, "gated_delta_grad_rows")
of_sums = partial(planted_in, "causal_conv1d_grad_sums")
of_inputs = partial(planted_in, "causal_conv1d_grad_inputs")
of_weights = partial(planted_in, "causal_conv1d_grad_weights")
of_reduce = partial(planted_in, "causal_conv1d_grad_reduce")

BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"

MUTANTS = [
    of_scan("the key head of each value head", "head / (args.Hv / args.Hk)", "head % args.Hk"),
    of_scan("a gradient that does not decay", "i % most_columns] *= whole_decay", "i % most_columns] *= 1.0f"),
    of_scan("the inverse as it is", "<true>(acc, own + inverse_at, Z", "<false>(acc, own + inverse_at, Z"),
    of_scan("the sign of K^T dV", "= -factors.E[row]", "= factors.E[row]"),
    of_scan("dV without beta", "value_gradient = factors.strengths[row] * Z", "value_gradient = Z"),
    of_scan("dV outside of the range", "dv_head[t * dv_stride + i % slice] = 0.0f;", ""),
    of_scores("G without its diagonal", "= i >= thread_index ? x", "= i > thread_index ? x"),
    of_scores("z with its diagonal", "= i > thread_index ? x", "= i >= thread_index ? x"),
    of_scores(
        "Z V where others still read decays",
        "value_dots[own_row] = along_values;",
        "value_dots[own_row] = along_values; own[decays_at + own_row] = along_values;",
    ),
    of_rows("gates outside of the range", "dg[(first_token + t) * args.Hv + key_head * heads + i] = 0.0f;", ""),
    of_rows("scaled keys without beta", "block[at] = -factors.strengths[i / row_columns] *", "block[at] = -1.0f *"),
    of_rows(
        "dK of the last value head",
        "(dk_row, own_gradient, column, own_width, member == 0",
        "(dk_row, own_gradient, column, own_width, true",
    ),
    of_rows("dK without X", "block[place + i] - factors.strengths[own_row] * own_X[i]", "block[place + i]"),
    of_rows("the decay of values", "along_queries - factors.strengths[own_row] * along", "along_queries - along"),
    of_rows("the state before the chunk", "batch, head, chunk + 1)", "batch, head, chunk)"),
    of_rows("sums written by all lanes", "if (thread_index % 32 == 0) {", "if (true) {"),
    of_rows("the scale of queries", "query_factor, float(args.Dk), all", "query_factor, 1.0f, all"),
    of_rows(
        "value heads in turn",
        "const int head = key_head * heads + member;",
        "const int head = member * args.Hk + key_head;",
    ),
    of_rows(
        "no barrier before the next block",
        f"own_width, member == 0, thread_index);\n      {BARRIER}\n    }}",
        "own_width, member == 0, thread_index);\n    }",
    ),
    of_sums("silu as its sigmoid", "s * (1.0f + sum * (1.0f - s))", "s"),
    of_inputs("taps from the wrong end", "t + args.K - 1 - j", "t + j"),
    of_inputs("users past the end", "user >= range.x && user < range.y", "user >= range.x"),
    of_inputs("rows that were not kept", "if (kept >= 0) {", "{"),
    of_inputs("a state before token 0", "range.x - (args.K - 1) + place", "-(args.K - 1) + place"),
    of_inputs("tokens before the first", "of_state || (t >= range.x && t", "of_state || (t"),
    of_weights("blocks from token 0", "max(range.x, block * CAUSAL_CONV1D_BLOCK)", "range.x"),
    of_reduce("parts of the first row", "grad_args.B * grad_args.blocks; ++part", "grad_args.blocks; ++part"),
]


@pytest.mark.parametrize("kernel", ["gated_delta_grad_scan", "causal_conv1d_grad_sums"])
def test_the_kernels_themselves(kernel: str) -> None:
    family = kernel[: kernel.index("_grad_") + 5]
    check(family, kernel, source_of(family))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.problem['kernel']}: {mutant.name}")
def test_mutants_are_killed(mutant: Mutant, tmp_path: Path) -> None:
    root = plant(tmp_path, mutant)
    with pytest.raises((EmulatorError, AssertionError)):
        check(mutant.family, mutant.problem["kernel"], source_of(mutant.family, root))
