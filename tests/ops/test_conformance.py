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
    return {name: LAYOUTS[layout](x, DTYPES[dtype]) for name, x in case.arrays(seed).items()}


def float64(x: mx.array) -> np.ndarray:
    return np.array(x.astype(mx.float32)).astype(np.float64)


def used_fraction(spec: OpSpec, case: Case, inputs: dict[str, mx.array], result: mx.array, dtype: str) -> float:
    """The largest error as a fraction of what the spec allows."""
    expected, magnitude = spec.oracle(**{n: float64(x) for n, x in inputs.items()}, **case.keywords)
    assert result.shape == expected.shape
    allowed = spec.roundings(case) * 2.0**-24 * magnitude + UNIT_ROUNDOFF[dtype] * np.abs(expected)
    if result.size == 0:
        return 0.0
    tiny = 2.0**-126 if dtype != "float16" else 2.0**-25
    return float(np.max(np.abs(float64(result) - expected) / (allowed + tiny)))


@each_case
@each_dtype
@pytest.mark.parametrize("layout", LAYOUTS)
def test_result(spec: OpSpec, case: Case, dtype: str, layout: str) -> None:
    inputs = make(case, dtype, layout)
    result = spec.op(**inputs, **case.keywords)
    assert result.dtype == DTYPES[dtype]
    assert used_fraction(spec, case, inputs, result, dtype) <= 1.0


@each_case
def test_twin_means_the_same(spec: OpSpec, case: Case) -> None:
    inputs = make(case, "float32")
    result = spec.twin(**inputs, **case.keywords)
    assert used_fraction(spec, case, inputs, result, "float32") <= 1.0


@each_case
def test_use_reference_takes_the_twin(spec: OpSpec, case: Case) -> None:
    inputs = make(case, "float32")
    with mt.trace() as entries, mt.use_reference():
        mx.eval(spec.op(**inputs, **case.keywords))
    assert entries == []


def close(ours: mx.array, theirs: mx.array, tolerance: float = 2e-5) -> bool:
    ours64, theirs64 = float64(ours), float64(theirs)
    assert ours64.shape == theirs64.shape
    scale = max(1.0, float(np.max(np.abs(theirs64), initial=0.0)))
    return bool(np.max(np.abs(ours64 - theirs64), initial=0.0) <= tolerance * scale)


def bind(function: Callable[..., mx.array], case: Case) -> tuple[Callable[..., mx.array], list[str]]:
    """``function`` of positional arrays, and their names."""
    names = list(case.shapes)

    def positional(*arrays: mx.array) -> mx.array:
        return function(**dict(zip(names, arrays, strict=True)), **case.keywords)

    return positional, names


@each_case
def test_gradients(spec: OpSpec, case: Case) -> None:
    ours, names = bind(spec.op, case)
    theirs, _ = bind(spec.twin, case)
    inputs = list(make(case, "float32").values())
    cotangent = mx.array(np.random.default_rng(1).standard_normal(ours(*inputs).shape).astype(np.float32))
    _, our_gradients = mx.vjp(ours, inputs, [cotangent])
    _, their_gradients = mx.vjp(theirs, inputs, [cotangent])
    for name, our_gradient, their_gradient in zip(names, our_gradients, their_gradients, strict=True):
        assert close(our_gradient, their_gradient), name


@each_case
def test_second_gradients(spec: OpSpec, case: Case) -> None:
    inputs = list(make(case, "float32").values())

    def penalty(function: Callable[..., mx.array]) -> Callable[..., mx.array]:
        def slope(*arrays: mx.array) -> mx.array:
            return mx.grad(lambda *xs: mx.sum(mx.sin(function(*xs))))(*arrays).square().sum()

        return slope

    ours = mx.grad(penalty(bind(spec.op, case)[0]))(*inputs)
    theirs = mx.grad(penalty(bind(spec.twin, case)[0]))(*inputs)
    assert close(ours, theirs, 1e-4)


@each_case
def test_jvp(spec: OpSpec, case: Case) -> None:
    ours, _ = bind(spec.op, case)
    theirs, _ = bind(spec.twin, case)
    primals = list(make(case, "float32").values())
    tangents = list(make(case, "float32", seed=2).values())
    _, (our_tangent,) = mx.jvp(ours, primals, tangents)
    _, (their_tangent,) = mx.jvp(theirs, primals, tangents)
    assert close(our_tangent, their_tangent)
    for i in range(len(primals)):

        def of_one(function: Callable[..., mx.array], i: int = i) -> Callable[[mx.array], mx.array]:
            return lambda x: function(*primals[:i], x, *primals[i + 1 :])

        _, (our_tangent,) = mx.jvp(of_one(ours), [primals[i]], [tangents[i]])
        _, (their_tangent,) = mx.jvp(of_one(theirs), [primals[i]], [tangents[i]])
        assert close(our_tangent, their_tangent)


@each_case
def test_vmap_over_every_axis_of_every_input(spec: OpSpec, case: Case) -> None:
    ours, names = bind(spec.op, case)
    arrays = list(case.arrays().values())
    fixed = [mx.array(x) for x in arrays]
    for i in range(len(names)):
        stack = np.stack([arrays[i], 2 * arrays[i], -arrays[i]])
        expected = mx.stack([ours(*fixed[:i], mx.array(x), *fixed[i + 1 :]) for x in stack])
        for axis in range(stack.ndim):
            moved = mx.array(np.moveaxis(stack, 0, axis))
            axes = [None] * len(names)
            axes[i] = axis
            mapped = mx.vmap(ours, in_axes=tuple(axes))(*fixed[:i], moved, *fixed[i + 1 :])
            assert close(mapped, expected), (names[i], axis)
    everything = [mx.array(np.stack([x, 2 * x])) for x in arrays]
    expected = mx.stack([ours(*fixed), ours(*(2 * x for x in fixed))])
    assert close(mx.vmap(ours)(*everything), expected)


@each_case
def test_vmap_of_gradient(spec: OpSpec, case: Case) -> None:
    ours, _ = bind(spec.op, case)
    fixed = [mx.array(x) for x in case.arrays().values()]
    gradient = mx.grad(lambda *xs: mx.sum(mx.square(ours(*xs))))
    stack = mx.stack([fixed[0], 0.5 * fixed[0]])
    axes = (0, *(None for _ in fixed[1:]))
    mapped = mx.vmap(gradient, in_axes=axes)(stack, *fixed[1:])
    assert close(mapped, mx.stack([gradient(x, *fixed[1:]) for x in stack]))


@each_case
@pytest.mark.parametrize("shapeless", [False, True])
def test_compile(spec: OpSpec, case: Case, shapeless: bool) -> None:
    ours, _ = bind(spec.op, case)
    compiled = mx.compile(ours, shapeless=shapeless)
    for seed in (0, 3):
        inputs = list(make(case, "float32", seed=seed).values())
        assert mx.array_equal(compiled(*inputs), ours(*inputs))


@each_case
def test_compile_shapeless_follows_new_shapes(spec: OpSpec, case: Case) -> None:
    ours, names = bind(spec.op, case)
    first = case.shapes[names[0]]
    if len(first) < 2 or 1 in first or "residual" in names:
        leading = None
    else:
        leading = 0 if all(len(case.shapes[n]) < len(first) or n == names[0] for n in names[1:]) else None
    compiled = mx.compile(ours, shapeless=True)
    inputs = [mx.array(x) for x in case.arrays().values()]
    assert mx.array_equal(compiled(*inputs), ours(*inputs))
    if leading is not None and first[0] > 1:
        longer = [mx.concatenate([inputs[0], inputs[0]], axis=0), *inputs[1:]]
        assert mx.array_equal(compiled(*longer), ours(*longer))


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.name)
def test_parameters_are_told_apart(spec: OpSpec) -> None:
    """Two calls that differ in one keyword stay two under compile, which merges equivalent primitives."""
    by_shapes: dict[Any, list[Case]] = {}
    for case in spec.cases:
        by_shapes.setdefault(tuple(case.shapes.items()), []).append(case)
    variants = [{}, {"activation": "relu"}, {"activation": "silu"}, {"activation": "gelu"}, {"activation": "gelu_tanh"}]
    inputs = make(spec.cases[0], "float32")

    def all_of_them(**arrays: mx.array) -> list[mx.array]:
        return [spec.op(**arrays, **keywords) for keywords in variants]

    for compiled, plain in zip(mx.compile(all_of_them)(**inputs), all_of_them(**inputs), strict=True):
        assert mx.array_equal(compiled, plain)


@each_case
def test_other_streams_and_threads(spec: OpSpec, case: Case) -> None:
    ours, _ = bind(spec.op, case)
    inputs = list(make(case, "float32").values())
    expected = ours(*inputs)
    stream = mx.new_stream(mx.cpu)
    elsewhere = spec.op(**dict(zip(case.shapes, inputs, strict=True)), **case.keywords, stream=stream)
    assert mx.array_equal(elsewhere, expected)


@pytest.mark.parametrize(
    ("spec", "refusal"),
    [pytest.param(spec, refusal, id=f"{spec.name}-{refusal.name}") for spec in SPECS for refusal in spec.refusals],
)
def test_refusal(spec: OpSpec, refusal: Refusal) -> None:
    dtypes = {name: getattr(mx, refusal.dtypes.get(name, "float32")) for name in refusal.shapes}
    arrays = {name: mx.zeros(shape, dtypes[name]) for name, shape in refusal.shapes.items()}
    with mt.trace() as entries, pytest.raises(ValueError, match=rf"^\[mlx_tessl\.{spec.name}\]") as raised:
        spec.op(**arrays, **refusal.keywords)
    assert refusal.message in str(raised.value)
    assert entries == []


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.name)
def test_not_an_array(spec: OpSpec) -> None:
    names = list(spec.cases[0].shapes)
    with pytest.raises(TypeError):
        spec.op(**dict.fromkeys(names, 1.0))
