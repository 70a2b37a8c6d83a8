"""Every op of the conformance table, over its cases, dtypes, layouts and transforms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import mlx_tessl as mt

from .conformance import SPECS, Case, OpSpec, Refusal
from .layouts import LAYOUTS

DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
UNIT_ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}

each_case = pytest.mark.parametrize(
    ("spec", "case"), [pytest.param(spec, case, id=f"{spec.name}-{case.name}") for spec in SPECS for case in spec.cases]
)
each_dtype = pytest.mark.parametrize("dtype", DTYPES)


def make(case: Case, dtype: str, layout: str = "contiguous", seed: int = 0) -> dict[str, mx.array]:
    """The arrays that derivatives are with respect to."""
    return {name: LAYOUTS[layout](x, DTYPES[dtype]) for name, x in case.arrays(seed).items()}


def fixed(case: Case) -> dict[str, Any]:
    """All else that the case calls its op with."""
    return {**{name: mx.array(x) for name, x in case.integers.items()}, **case.keywords}


def results(value: mx.array | tuple[mx.array, ...]) -> list[mx.array]:
    return [value] if isinstance(value, mx.array) else list(value)


def float64(x: mx.array) -> np.ndarray:
    return np.array(x.astype(mx.float32)).astype(np.float64)


def used_fraction(spec: OpSpec, case: Case, inputs: dict[str, mx.array], outputs: list[mx.array], dtype: str) -> float:
    """The largest error as a fraction of what the spec allows; NaN where a result is."""
    expectations = spec.oracle(**{n: float64(x) for n, x in inputs.items()}, **case.integers, **case.keywords)
    if isinstance(expectations, tuple):
        expectations = [expectations]
    tiny = 2.0**-126 if dtype != "float16" else 2.0**-25
    fractions = [0.0]
    for output, (expected, magnitude) in zip(outputs, expectations, strict=True):
        assert output.shape == expected.shape
        allowed = spec.roundings(case) * 2.0**-24 * magnitude + UNIT_ROUNDOFF[dtype] * np.abs(expected) + tiny
        fractions.append(float(np.max(np.abs(float64(output) - expected) / allowed, initial=0.0)))
    return float(np.max(fractions))  # unlike max, passes NaN on


@each_case
@each_dtype
@pytest.mark.parametrize("layout", LAYOUTS)
def test_result(spec: OpSpec, case: Case, dtype: str, layout: str) -> None:
    inputs = make(case, dtype, layout)
    outputs = results(spec.op(**inputs, **fixed(case)))
    assert {output.dtype for output in outputs} == {mx.uint32 if spec.gives_indices else DTYPES[dtype]}
    assert used_fraction(spec, case, inputs, outputs, dtype) <= 1.0


@each_case
def test_twin_means_the_same(spec: OpSpec, case: Case) -> None:
    inputs = make(case, "float32")
    outputs = results(spec.twin(**inputs, **fixed(case)))
    assert used_fraction(spec, case, inputs, outputs, "float32") <= 1.0


@each_case
def test_use_reference_takes_the_twin(spec: OpSpec, case: Case) -> None:
    inputs = make(case, "float32")
    with mt.trace() as entries, mt.use_reference():
        mx.eval(spec.op(**inputs, **fixed(case)))
    assert entries == []


def close(ours: list[mx.array], theirs: list[mx.array], tolerance: float = 2e-5) -> bool:
    return all(close_array(x, y, tolerance) for x, y in zip(ours, theirs, strict=True))


def close_array(ours: mx.array, theirs: mx.array, tolerance: float = 2e-5) -> bool:
    ours64, theirs64 = float64(ours), float64(theirs)
    assert ours64.shape == theirs64.shape
    scale = max(1.0, float(np.max(np.abs(theirs64), initial=0.0)))
    return bool(np.max(np.abs(ours64 - theirs64), initial=0.0) <= tolerance * scale)


def equal(ours: list[mx.array], theirs: list[mx.array]) -> bool:
    return all(bool(mx.array_equal(x, y)) for x, y in zip(ours, theirs, strict=True))


Positional = Callable[..., list[mx.array]]


def bind(function: Callable[..., Any], case: Case) -> tuple[Positional, list[str]]:
    """``function`` of positional arrays, to a list of arrays, and the names of the former."""
    names = list(case.shapes)

    def positional(*arrays: mx.array) -> list[mx.array]:
        return results(function(**dict(zip(names, arrays, strict=True)), **fixed(case)))

    return positional, names


def has_elements(spec: OpSpec, case: Case) -> bool:
    """Of nothing there are no derivatives to compare, and some stock ops of the twins refuse it."""
    return any(y.size > 0 for y in results(spec.op(**make(case, "float32"), **fixed(case))))


each_shapeless_case = pytest.mark.parametrize(
    ("spec", "case"),
    [
        pytest.param(spec, case, id=f"{spec.name}-{case.name}")
        for spec in SPECS
        if spec.shapeless
        for case in spec.cases
    ],
)
each_differentiable_case = pytest.mark.parametrize(
    ("spec", "case"),
    [
        pytest.param(spec, case, id=f"{spec.name}-{case.name}")
        for spec in SPECS
        if not spec.gives_indices
        for case in spec.cases
        if has_elements(spec, case)
    ],
)


EMPTY_CASES = [
    pytest.param(spec, case, id=f"{spec.name}-{case.name}")
    for spec in SPECS
    if not spec.gives_indices
    for case in spec.cases
    if not has_elements(spec, case)
]


@pytest.mark.parametrize(("spec", "case"), EMPTY_CASES)
def test_derivatives_of_nothing(spec: OpSpec, case: Case) -> None:
    ours, _ = bind(spec.op, case)
    inputs = list(make(case, "float32").values())
    outputs, gradients = mx.vjp(ours, inputs, ours(*inputs))
    assert [g.shape for g in gradients] == [x.shape for x in inputs]
    assert all(not mx.any(g).item() for g in gradients)
    _, tangents = mx.jvp(ours, inputs, inputs)
    assert [t.shape for t in tangents] == [y.shape for y in outputs]


@each_differentiable_case
def test_gradients(spec: OpSpec, case: Case) -> None:
    ours, names = bind(spec.op, case)
    theirs, _ = bind(spec.twin, case)
    inputs = list(make(case, "float32").values())
    rng = np.random.default_rng(1)
    cotangents = [mx.array(rng.standard_normal(y.shape).astype(np.float32)) for y in ours(*inputs)]
    _, our_gradients = mx.vjp(ours, inputs, cotangents)
    _, their_gradients = mx.vjp(theirs, inputs, cotangents)
    for name, our_gradient, their_gradient in zip(names, our_gradients, their_gradients, strict=True):
        assert close_array(our_gradient, their_gradient), name


@each_differentiable_case
def test_second_gradients(spec: OpSpec, case: Case) -> None:
    inputs = list(make(case, "float32").values())

    def penalty(function: Positional) -> Callable[..., mx.array]:
        def slope(*arrays: mx.array) -> mx.array:
            return mx.grad(lambda *xs: sum(mx.sum(mx.sin(y)) for y in function(*xs)))(*arrays).square().sum()

        return slope

    ours = mx.grad(penalty(bind(spec.op, case)[0]))(*inputs)
    theirs = mx.grad(penalty(bind(spec.twin, case)[0]))(*inputs)
    assert close_array(ours, theirs, 1e-4)


@each_differentiable_case
def test_jvp(spec: OpSpec, case: Case) -> None:
    ours, _ = bind(spec.op, case)
    theirs, _ = bind(spec.twin, case)
    primals = list(make(case, "float32").values())
    tangents = list(make(case, "float32", seed=2).values())
    assert close(mx.jvp(ours, primals, tangents)[1], mx.jvp(theirs, primals, tangents)[1])
    for i in range(len(primals)):

        def of_one(function: Positional, i: int = i) -> Callable[[mx.array], list[mx.array]]:
            return lambda x: function(*primals[:i], x, *primals[i + 1 :])

        _, our_tangents = mx.jvp(of_one(ours), [primals[i]], [tangents[i]])
        _, their_tangents = mx.jvp(of_one(theirs), [primals[i]], [tangents[i]])
        assert close(our_tangents, their_tangents)


def stacked(outputs: list[list[mx.array]]) -> list[mx.array]:
    return [mx.stack(list(ys)) for ys in zip(*outputs, strict=True)]


@each_case
def test_vmap_over_every_axis_of_every_input(spec: OpSpec, case: Case) -> None:
    ours, names = bind(spec.op, case)
    arrays = list(case.arrays().values())
    inputs = [mx.array(x) for x in arrays]
    for i in range(len(names)):
        stack = np.stack([arrays[i], 2 * arrays[i], -arrays[i]])
        expected = stacked([ours(*inputs[:i], mx.array(x), *inputs[i + 1 :]) for x in stack])
        for axis in range(stack.ndim):
            moved = mx.array(np.moveaxis(stack, 0, axis))
            axes = [None] * len(names)
            axes[i] = axis
            mapped = mx.vmap(ours, in_axes=tuple(axes))(*inputs[:i], moved, *inputs[i + 1 :])
            assert close(mapped, expected), (names[i], axis)
    everything = [mx.array(np.stack([x, 2 * x])) for x in arrays]
    expected = stacked([ours(*inputs), ours(*(2 * x for x in inputs))])
    assert close(mx.vmap(ours)(*everything), expected)


@each_differentiable_case
def test_vmap_of_gradient(spec: OpSpec, case: Case) -> None:
    ours, _ = bind(spec.op, case)
    inputs = [mx.array(x) for x in case.arrays().values()]
    gradient = mx.grad(lambda *xs: sum(mx.sum(mx.square(y)) for y in ours(*xs)))
    stack = mx.stack([inputs[0], 0.5 * inputs[0]])
    axes = (0, *(None for _ in inputs[1:]))
    mapped = mx.vmap(gradient, in_axes=axes)(stack, *inputs[1:])
    assert close_array(mapped, mx.stack([gradient(x, *inputs[1:]) for x in stack]))


@each_case
def test_compile(spec: OpSpec, case: Case) -> None:
    check_compile(spec, case, shapeless=False)


@each_shapeless_case
def test_compile_shapeless(spec: OpSpec, case: Case) -> None:
    check_compile(spec, case, shapeless=True)


def check_compile(spec: OpSpec, case: Case, *, shapeless: bool) -> None:
    ours, _ = bind(spec.op, case)
    compiled = mx.compile(ours, shapeless=shapeless)
    for seed in (0, 3):
        inputs = list(make(case, "float32", seed=seed).values())
        assert equal(compiled(*inputs), ours(*inputs))


@each_shapeless_case
def test_compile_shapeless_follows_new_shapes(spec: OpSpec, case: Case) -> None:
    ours, names = bind(spec.op, case)
    compiled = mx.compile(ours, shapeless=True)
    inputs = [mx.array(x) for x in case.arrays().values()]
    assert equal(compiled(*inputs), ours(*inputs))
    growing = [case.shapes[name] for name in names if name in spec.growing]
    others = [case.shapes[name] for name in names if name not in spec.growing]
    rank = len(growing[0]) if growing else 0
    if rank < 2 or growing[0][0] < 2 or any(len(shape) != rank or shape[0] != growing[0][0] for shape in growing):
        return
    bound = any(len(x.shape) > 0 and x.shape[0] == growing[0][0] for x in case.integers.values())
    if all(len(shape) < rank for shape in others) and not bound:
        longer = [mx.concatenate([x, x]) if name in spec.growing else x for name, x in zip(names, inputs, strict=True)]
        assert equal(compiled(*longer), ours(*longer))


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.name)
def test_parameters_are_told_apart(spec: OpSpec) -> None:
    """Two calls that differ in one keyword stay two under compile, which merges equivalent primitives."""
    case = spec.cases[0]
    inputs = make(case, "float32")

    def all_of_them(**arrays: mx.array) -> list[mx.array]:
        return [y for keywords in spec.variants for y in results(spec.op(**arrays, **{**fixed(case), **keywords}))]

    assert equal(mx.compile(all_of_them)(**inputs), all_of_them(**inputs))


@each_case
def test_other_streams_and_threads(spec: OpSpec, case: Case) -> None:
    inputs = make(case, "float32")
    expected = results(spec.op(**inputs, **fixed(case)))
    stream = mx.new_stream(mx.cpu)
    assert equal(results(spec.op(**inputs, **fixed(case), stream=stream)), expected)


@pytest.mark.parametrize(
    ("spec", "refusal"),
    [pytest.param(spec, refusal, id=f"{spec.name}-{refusal.name}") for spec in SPECS for refusal in spec.refusals],
)
def test_refusal(spec: OpSpec, refusal: Refusal) -> None:
    dtypes = {name: getattr(mx, refusal.dtypes.get(name, "float32")) for name in refusal.shapes}
    arrays = {name: mx.zeros(shape, dtypes[name]) for name, shape in refusal.shapes.items()}
    with mt.trace() as entries, pytest.raises(ValueError, match=rf"^\[mlx_tessl\.{spec.name}\]") as raised:
        spec.op(**arrays, **{name: mx.array(x) for name, x in refusal.integers.items()}, **refusal.keywords)
    assert refusal.message in str(raised.value)
    assert entries == []


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.name)
def test_not_an_array(spec: OpSpec) -> None:
    names = list(spec.cases[0].shapes)
    with pytest.raises(TypeError):
        spec.op(**dict.fromkeys(names, 1.0))


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.name)
def test_not_a_stream(spec: OpSpec) -> None:
    case = spec.cases[0]
    with pytest.raises(ValueError, match=r"^\[mlx_tessl\] stream is 'cpu'; it must be a stream, a device or None"):
        spec.op(**make(case, "float32"), **fixed(case), stream="cpu")
