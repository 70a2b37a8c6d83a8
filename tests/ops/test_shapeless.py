"""Derivatives and maps of every op within a shapeless compile, traced with one shape and called with others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import mlx.core as mx
import numpy as np
import pytest

from .conformance import SPECS, Arrays, Case, OpSpec

# Of no dimension that could change alone.
ONE_SHAPE = {"two_scalars", "empty_k", "row"}

Function = Callable[..., list[mx.array]]
Transform = Callable[[Function, list[mx.array], list[mx.array]], Function]


def params(specs: Sequence[OpSpec], most: int | None = None) -> pytest.MarkDecorator:
    cases = [(spec, case) for spec in specs for case in spec.cases[:most]]
    return pytest.mark.parametrize(
        ("spec", "case"), [pytest.param(spec, case, id=f"{spec.name}-{case.name}") for spec, case in cases]
    )


SHAPELESS = [spec for spec in SPECS if spec.shapeless]
DIFFERENTIABLE = [spec for spec in SHAPELESS if not spec.gives_indices]


def resized(case: Case, old: int, new: int) -> tuple[Arrays, Arrays]:
    """Arrays and integers of the case where every dimension that was ``old`` is ``new``."""

    def shape(x: np.ndarray) -> tuple[int, ...]:
        return tuple(new if size == old else size for size in x.shape)

    rng = np.random.default_rng(5)
    arrays = {name: rng.standard_normal(shape(x)).astype(np.float32) for name, x in case.arrays().items()}
    return arrays, {name: np.resize(x, shape(x)) if x.size else x for name, x in case.integers.items()}


def calls(case: Case) -> Iterator[tuple[Arrays, Arrays]]:
    """What the case says, and then with each of its dimensions larger, and smaller. Not all of it the op takes."""
    yield case.arrays(), case.integers
    for old in sorted({size for x in case.arrays().values() for size in x.shape if size > 0}):
        for new in (old + 1, 2 * old, max(1, old // 2)):
            if new != old:
                yield resized(case, old, new)


def check(
    spec: OpSpec, case: Case, transformed: Callable[[Function, list[mx.array], list[mx.array]], Function]
) -> None:
    """``transformed`` makes a function of all arrays of the op's function, and of the primals and outputs it has."""
    names, wholes = list(case.shapes), list(case.integers)

    def op(*arrays: mx.array) -> list[mx.array]:
        value = spec.op(**dict(zip(names + wholes, arrays, strict=True)), **case.keywords)
        return [value] if isinstance(value, mx.array) else list(value)

    compiled = None
    others = 0
    for arrays, integers in calls(case):
        primals = [mx.array(x) for x in arrays.values()]
        constants = [mx.array(x) for x in integers.values()]
        try:
            outputs = op(*primals, *constants)
        except ValueError:
            continue
        if compiled is None:
            function = transformed(op, primals, outputs)
            compiled = mx.compile(function, shapeless=True)
        given = [*primals, *(mx.random.normal(y.shape, key=mx.random.key(1)) for y in outputs), *constants]
        expected, found = function(*given), compiled(*given)
        for ours, theirs in zip(found, expected, strict=True):
            assert ours.shape == theirs.shape
            assert np.array_equal(ours, theirs, equal_nan=True), (case.shapes, {k: x.shape for k, x in arrays.items()})
        others += 1
        if others == 4:
            break
    assert others > 1 or case.name in ONE_SHAPE


@params(SHAPELESS)
def test_results(spec: OpSpec, case: Case) -> None:
    def op_alone(op: Function, primals: list[mx.array], outputs: list[mx.array]) -> Function:
        return lambda *given: op(*given[: len(primals)], *given[len(primals) + len(outputs) :])

    check(spec, case, op_alone)


@params(DIFFERENTIABLE)
def test_gradients(spec: OpSpec, case: Case) -> None:
    def gradients(op: Function, primals: list[mx.array], outputs: list[mx.array]) -> Function:
        n, m = len(primals), len(primals) + len(outputs)
        return lambda *given: mx.vjp(lambda *x: op(*x, *given[m:]), list(given[:n]), list(given[n:m]))[1]

    check(spec, case, gradients)


@params(DIFFERENTIABLE)
def test_jvp(spec: OpSpec, case: Case) -> None:
    def derivative(op: Function, primals: list[mx.array], outputs: list[mx.array]) -> Function:
        n, m = len(primals), len(primals) + len(outputs)
        return lambda *given: mx.jvp(lambda *x: op(*x, *given[m:]), list(given[:n]), list(given[:n]))[1]

    check(spec, case, derivative)


@params(SHAPELESS)
def test_vmap(spec: OpSpec, case: Case) -> None:
    def mapped(op: Function, primals: list[mx.array], outputs: list[mx.array]) -> Function:
        m = len(primals) + len(outputs)

        def of_two(*given: mx.array) -> list[mx.array]:
            first = mx.stack([given[0], given[0]])
            return mx.vmap(lambda x: op(x, *given[1 : len(primals)], *given[m:]))(first)

        return of_two

    check(spec, case, mapped)


@params(DIFFERENTIABLE, most=1)
def test_second_gradients(spec: OpSpec, case: Case) -> None:
    def gradients(op: Function, primals: list[mx.array], outputs: list[mx.array]) -> Function:
        n, m = len(primals), len(primals) + len(outputs)

        def first(*given: mx.array) -> list[mx.array]:
            return mx.vjp(lambda *x: op(*x, *given[m:]), list(given[:n]), list(given[n:m]))[1]

        def second(*given: mx.array) -> list[mx.array]:
            return mx.vjp(lambda *x: first(*x, *given[n:]), list(given[:n]), list(given[:n]))[1]

        return second

    check(spec, case, gradients)
