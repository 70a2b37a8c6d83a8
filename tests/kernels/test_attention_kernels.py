"""The attention shaders, run from their source in the emulator with every check on, against float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ..ops.attention_bounds import Arithmetic, Bounds, used
from .attention_problems import (
    Array,
    Problem,
    attended,
    bounds,
    copied_prefix,
    forward,
    gradient_bounds,
    gradients,
    launch_plan,
    log_sums,
    stored,
    wide,
)

DTYPES = ["float32", "float16", "bfloat16"]

# float32 does not run on the matrix units but as tf32.
KINDS: dict[str, dict[str, Any]] = {
    "portable": {"device": ("m1", "14.0")},
    "tensorops": {"device": ("m5-pro", "26.4"), "dtype": "float16", "relaxed": True},
}
kinds = pytest.mark.parametrize("kind", KINDS)
both_dtypes = pytest.mark.parametrize(
    ("kind", "dtype"),
    [(kind, dtype) for kind in KINDS for dtype in DTYPES if (kind, dtype) != ("tensorops", "float32")],
)

FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "causal_short": {"causal": True, "Tq": 70, "Tk": 45},  # the first queries see no key
    "window": {"window": (9, 4)},
    "left_window": {"window": (0, -1)},
    "right_window": {"window": (-1, 0)},
    "causal_window": {"causal": True, "window": (33, 7)},
    "lengths": {"lengths": (50, 0)},
    "starts": {"starts": (66, -5), "lengths": (1000, 70)},
    "bool": {"mask": "bool"},
    "bool_of_keys": {"mask": "bool", "mask_shape": (2, 1, 1, 70)},
    "additive": {"mask": "additive"},
    "additive_of_heads": {"mask": "additive", "mask_shape": (2, 1, 70)},
    "softcap": {"softcap": 2.5},
    "sinks": {"sinks": True, "causal": True, "Tq": 70, "Tk": 45},
    "prefix": {"P": 37},
    "prefix_window": {"P": 37, "causal": True, "window": (50, -1), "lengths": (60, 3), "starts": (40, 0)},
    "only_prefix": {"P": 37, "Tk": 0},
    "everything": {
        "P": 21,
        "causal": True,
        "window": (60, 9),
        "mask": "additive",
        "mask_shape": (2, 1, 45, 91),
        "starts": (5, 0),
        "lengths": (70, 44),
        "sinks": True,
        "softcap": 3.0,
    },
}
features = pytest.mark.parametrize("feature", FEATURES)


def problem_of(kind: str, **keywords: Any) -> Problem:
    problem = Problem(**(KINDS[kind] | keywords))
    assert problem.call().kind in (kind, "vector")
    return problem


def forward_used(problem: Problem, **options: Any) -> dict[str, float]:
    """The largest shares of their bounds that the output and the log-sum-exp use."""
    out, ends = forward(problem, **options)
    b = bounds(problem)
    assert np.all(out[~b.a.sees] == 0)
    assert np.all(ends[~b.a.sees] == 0)
    expected = np.stack([b.a.most / np.log(2), b.a.total], -1)
    return {"out": used(out, b.a.out, b.out()), "lse": used(log_sums(ends), log_sums(expected), b.lse())}


def gradients_used(problem: Problem, **options: Any) -> dict[str, float]:
    expected = gradient_bounds(problem)
    return {name: used(gradient, *expected[name]) for name, gradient in gradients(problem, **options).items()}


def check_forward(problem: Problem, **options: Any) -> None:
    assert all(share <= 1.0 for share in forward_used(problem, **options).values())


@features
@kinds
def test_forward_features(kind: str, feature: str) -> None:
    check_forward(problem_of(kind, **FEATURES[feature]))


# Each head dimension that has a kernel, and each dtype in small, middle and large ones.
HEADS = [
    *(("portable", "float32", D) for D in (64, 72, 80, 96, 128, 192, 256, 512)),
    *(("portable", "float16", D) for D in (72, 192, 512)),
    *(("portable", "bfloat16", D) for D in (64, 80, 256)),
    *(("tensorops", "float16", D) for D in (64, 72, 80, 96, 128, 192, 512)),
    *(("tensorops", "bfloat16", D) for D in (80, 256)),
    *(("tensorops", "float32", D) for D in (64, 512)),
]
SMALL: dict[str, Any] = {"B": 1, "Tq": 35, "Tk": 40, "causal": True}


@pytest.mark.parametrize(("kind", "dtype", "D"), HEADS)
def test_forward_heads(kind: str, dtype: str, D: int) -> None:
    check_forward(problem_of(kind, dtype=dtype, D=D, **SMALL))


@pytest.mark.parametrize(("D", "Dv"), [(1, 1), (17, 64), (64, 13), (100, 36), (192, 128), (520, 36), (36, 520), (0, 8)])
@kinds
def test_any_head_dimension(kind: str, D: int, Dv: int) -> None:
    check_forward(problem_of(kind, dtype="float16", B=1, heads=2, kv_heads=1, Tq=11, Tk=33, D=D, Dv=Dv))


@pytest.mark.parametrize(("Tq", "Tk"), [(1, 1), (31, 32), (32, 33), (33, 64), (64, 31), (9, 0)])
@kinds
def test_any_lengths(kind: str, Tq: int, Tk: int) -> None:
    check_forward(problem_of(kind, Tq=Tq, Tk=Tk, causal=True))


@kinds
def test_heads_share_keys(kind: str) -> None:
    check_forward(problem_of(kind, B=2, heads=6, kv_heads=3, Tq=5, Tk=33, P=3, mask="additive"))


@pytest.mark.parametrize("layout", ["bthd", "bhdt"])
@both_dtypes
def test_operands_as_they_lie(kind: str, layout: Any, dtype: str) -> None:
    check_forward(problem_of(kind, dtype=dtype, D=36, layout=layout, B=2, heads=2, kv_heads=1, Tq=12, Tk=40))


def bits(x: Array) -> Array:
    return x.view(np.uint64)


def compare_row_with_batch(options: dict[str, Any], lengths: tuple[int, ...]) -> None:
    together = Problem(B=3, lengths=lengths, **options)

    def only_second(arrays: dict[str, Array]) -> None:
        for name in ("q", "k", "v"):
            arrays[name] = together.values[name][1:2].astype(np.float32)

    alone = Problem(B=1, lengths=lengths[1:2], change=only_second, **options)
    for x, y in zip(forward(together), forward(alone), strict=True):
        assert np.array_equal(bits(x[1:2]), bits(y))


def compare_prefix_with_copy(options: dict[str, Any], Tk: int, P: int) -> None:
    lengths = (Tk - 20, Tk)
    shared = Problem(Tk=Tk, P=P, lengths=lengths, **options)

    def copy_prefix(arrays: dict[str, Array]) -> None:
        for name in arrays.keys() & {"q", "sinks"}:
            arrays[name] = shared.values[name].astype(np.float32)
        for name in ("k", "v"):
            arrays[name] = copied_prefix(shared, name).astype(np.float32)

    copied = Problem(Tk=P + Tk, lengths=tuple(P + n for n in lengths), change=copy_prefix, **options)
    for x, y in zip(forward(shared), forward(copied), strict=True):
        assert np.array_equal(bits(x), bits(y))


@kinds
def test_a_row_keeps_its_bits_beside_others(kind: str) -> None:
    compare_row_with_batch(KINDS[kind] | {"Tq": 40, "Tk": 75, "causal": True}, lengths=(75, 33, 60))


@pytest.mark.parametrize("P", [32, 41])
@both_dtypes
def test_a_prefix_gives_the_bits_of_its_copy(kind: str, P: int, dtype: str) -> None:
    options = {"dtype": dtype, "Tq": 19, "causal": True, "window": (40, -1), "sinks": True}
    compare_prefix_with_copy(KINDS[kind] | options, Tk=50, P=P)


@kinds
def test_two_runs_agree(kind: str) -> None:
    problem = problem_of(kind, dtype="float16", D=80, causal=True)
    first = forward(problem, check=False, order="forward")
    second = forward(problem, check=False, order="shuffled", seed=5)
    for x, y in zip(first, second, strict=True):
        assert np.array_equal(bits(x), bits(y))


def poison_hidden(name: str, queries: int = 40) -> Any:
    """Puts NaN where lengths, the causal mask or the bool mask hide a key from some query or from all."""

    def change(arrays: dict[str, Array]) -> None:
        arrays[name][0, :, 66] = np.nan
        arrays[name][0, :, 21:23, ::3] = np.inf
        arrays[name][1, :, 13:] = np.nan
        if "mask" in arrays:
            arrays["mask"][...] = True
            arrays["mask"][0, :, :queries, 66] = False
            arrays["mask"][0, :, :, 21:23] = False

    return change


@pytest.mark.parametrize("name", ["k", "v"])
@both_dtypes
def test_what_is_hidden_may_hold_anything(kind: str, name: str, dtype: str) -> None:
    problem = problem_of(kind, dtype=dtype, lengths=(70, 13), mask="bool", change=poison_hidden(name))
    out, _ = forward(problem)
    finite = np.isfinite(out)
    assert finite[0, :, :40].all()
    assert not finite[0, :, 40:].all(-1).any()  # these see a NaN
    assert finite[1].all()


@kinds
def test_a_nan_in_a_query_stays_in_its_row(kind: str) -> None:
    def change(arrays: dict[str, Array]) -> None:
        arrays["q"][0, 1, 7, 3] = np.nan

    out, ends = forward(problem_of(kind, change=change, causal=True))
    nans = np.isnan(out)
    assert nans[0, 1, 7].all()
    assert nans.sum() == out.shape[-1]
    assert np.argwhere(np.isnan(ends)).tolist() == [[0, 1, 7, 1]]


@kinds
def test_extreme_scores_stay_finite(kind: str) -> None:
    """Additive masks of the lowest number weigh all alike where there is nothing else, as the sum of float32 does."""

    def change(arrays: dict[str, Array]) -> None:
        arrays["q"] *= 1e4
        arrays["mask"][...] = 0
        arrays["mask"][0, :, :3] = np.finfo(np.float32).min

    problem = problem_of(kind, dtype="float32", mask="additive", change=change)
    out, ends = forward(problem)
    assert np.isfinite(out).all()
    assert np.isfinite(ends).all()
    v = np.repeat(problem.values["v"], 2, 1)
    assert np.allclose(out[0, :, :3], v[0].mean(1, keepdims=True), atol=1e-3)


def test_hidden_blocks_are_not_visited() -> None:
    """Work follows what is visible: matrix products of a window, and of a short row, against the whole."""

    def products(**keywords: Any) -> int:
        problem = Problem(B=1, heads=1, Tq=256, Tk=256, **keywords)
        (reading,) = launch_plan(problem.call().plan(), problem.inputs(), problem.forward_outputs(), check=False)
        return reading.matrix_flops

    whole = products()
    assert whole == 4 * 256 * 256 * 64
    assert products(causal=True) == whole * 36 // 64
    assert products(window=(0, 0)) == whole * 8 // 64
    assert products(window=(31, 1)) == whole * 22 // 64
    assert products(lengths=(40,)) == whole * 16 // 64
    assert products(starts=(200,)) == whole * 16 // 64


def test_bfloat16_is_rounded_to_the_nearest() -> None:
    x = np.array([1.0, 1.00390625, 1.01171875, -2.0], np.float32)
    assert wide(stored(x, "bfloat16"), "bfloat16").tolist() == [1.0, 1.0, 1.015625, -2.0]


# Queries and keys; heads and heads of keys; with 1100 keys there are five splits.
DECODE: dict[str, dict[str, Any]] = {
    "one": {"Tq": 1, "Tk": 70, "heads": 1},
    "heads": {"Tq": 1, "Tk": 70, "heads": 6, "kv_heads": 2},
    "queries": {"Tq": 5, "Tk": 70, "causal": True, "window": (40, -1), "sinks": True, "softcap": 2.0},
    "no_key": {"Tq": 3, "Tk": 70, "lengths": (70, 0), "starts": (66, 0), "mask": "additive", "sinks": True},
    "prefix": {"Tq": 2, "Tk": 20, "P": 37, "mask": "bool"},
    "no_keys": {"Tq": 2, "Tk": 0},
    "splits": {"Tq": 2, "Tk": 1000, "P": 100, "lengths": (1000, 300), "sinks": True, "causal": True, "B": 2},
    "splits_window": {"Tq": 2, "Tk": 1500, "window": (1100, 0), "B": 1, "heads": 1},
    "splits_no_key": {"Tq": 1, "Tk": 1100, "lengths": (0,), "B": 1, "heads": 1},
}


@pytest.mark.parametrize("case", DECODE)
def test_decode(case: str) -> None:
    problem = Problem(**DECODE[case])
    launches = [launch.kernel for launch in problem.call().plan().launches]
    assert launches[0].startswith("attention_vector_float32_64_")
    assert launches[1:] == (["attention_combine_float32"] if case.startswith("splits") else [])
    check_forward(problem)


VECTOR_HEADS = [
    *(("float16", D) for D in (20, 72, 256)),
    *(("bfloat16", D) for D in (64, 80, 192)),
    *(("float32", D) for D in (96, 128, 512)),
]


@pytest.mark.parametrize("Tq", [1, 5])
@pytest.mark.parametrize(("dtype", "D"), VECTOR_HEADS)
def test_decode_heads(dtype: str, D: int, Tq: int) -> None:
    problem = Problem(**vector_head(dtype, D, Tq))
    assert problem.call().kind == "vector"
    check_forward(problem)


def vector_head(dtype: str, D: int, Tq: int) -> dict[str, Any]:
    return {"dtype": dtype, "D": D, "Dv": D - 3, "B": 1, "heads": 1, "Tq": Tq, "Tk": 37, "causal": True}


@pytest.mark.parametrize("layout", ["bthd", "bhdt"])
def test_decode_of_operands_as_they_lie(layout: Any) -> None:
    check_forward(Problem(dtype="float16", D=36, layout=layout, Tq=3, Tk=40))


@pytest.mark.parametrize(("Tk", "P"), [(50, 13), (1060, 41)])
def test_decode_gives_a_prefix_the_bits_of_its_copy(Tk: int, P: int) -> None:
    compare_prefix_with_copy({"Tq": 3, "causal": True, "heads": 1}, Tk=Tk, P=P)


def test_decode_of_a_row_keeps_its_bits_beside_others() -> None:
    compare_row_with_batch({"Tq": 2, "Tk": 1100, "heads": 1}, lengths=(1100, 700, 33))


@pytest.mark.parametrize("name", ["k", "v"])
def test_decode_past_hidden_nans(name: str) -> None:
    problem = Problem(Tq=2, lengths=(70, 13), mask="bool", change=poison_hidden(name, queries=1))
    finite = np.isfinite(forward(problem)[0])
    assert finite[0, :, 0].all()
    assert not finite[0, :, 1].all(-1).any()
    assert finite[1].all()


def check_gradients(problem: Problem, **options: Any) -> None:
    shares = gradients_used(problem, **options)
    assert all(share <= 1.0 for share in shares.values()), shares


MASKS: dict[str, dict[str, Any]] = {
    "of_keys": {"mask": "additive", "mask_shape": (1, 2, 1, 70)},
    "of_queries": {"mask": "additive", "mask_shape": (45, 1), "sinks": True},  # without sinks its gradient is 0
    "of_one_head": {"mask": "additive", "mask_shape": (2, 1, 45, 70)},
    "number": {"mask": "additive", "mask_shape": (1, 1), "sinks": True},
}


# The sums over masks are the same kernel on every device.
GRADIENT_FEATURES = [
    "causal_short",
    "window",
    "starts",
    "bool",
    "softcap",
    "sinks",
    "prefix",
    "prefix_window",
    "everything",
]
GRADIENTS = [
    *((kind, feature) for kind in KINDS for feature in GRADIENT_FEATURES),
    *(("portable", feature) for feature in ("left_window", "lengths", "additive", "only_prefix", *MASKS)),
]


@pytest.mark.parametrize(("kind", "feature"), GRADIENTS)
def test_gradient_features(kind: str, feature: str) -> None:
    check_gradients(problem_of(kind, **gradient_feature(feature)))


def gradient_feature(feature: str) -> dict[str, Any]:
    keywords = (FEATURES | MASKS)[feature]
    if feature not in {*MASKS, "additive_of_heads"}:
        keywords = {**keywords, "heads": 1}
    if feature in {"of_queries", "number"}:
        keywords = {**keywords, "change": lambda arrays: arrays["mask"].clip(-1, 1, out=arrays["mask"])}
    return keywords


GRADIENT_HEADS = [
    *(("portable", "float32", D) for D in (72, 96, 192, 512)),
    *(("portable", "float16", D) for D in (128, 192)),
    *(("portable", "bfloat16", D) for D in (80, 256)),
    *(("tensorops", "float16", D) for D in (72, 128, 512)),
    ("tensorops", "bfloat16", 256),
    ("tensorops", "float32", 64),
]


@pytest.mark.parametrize(("kind", "dtype", "D"), GRADIENT_HEADS)
def test_gradient_heads(kind: str, dtype: str, D: int) -> None:
    check_gradients(problem_of(kind, dtype=dtype, D=D, **SMALL))


@pytest.mark.parametrize(("D", "Dv"), [(17, 64), (64, 13), (520, 36), (36, 520), (0, 8)])
@kinds
def test_gradients_of_any_head_dimension(kind: str, D: int, Dv: int) -> None:
    check_gradients(problem_of(kind, dtype="float16", B=1, Tq=11, Tk=33, D=D, Dv=Dv))


@kinds
def test_gradients_where_heads_share_keys(kind: str) -> None:
    check_gradients(problem_of(kind, B=2, heads=6, kv_heads=3, Tq=5, Tk=33, P=3, mask="additive"))


@pytest.mark.parametrize("layout", ["bthd", "bhdt"])
@kinds
def test_gradients_of_operands_as_they_lie(kind: str, layout: Any) -> None:
    check_gradients(problem_of(kind, D=36, layout=layout, Tq=12, Tk=40))


@pytest.mark.parametrize("sizes", [{"Tq": 0}, {"Tk": 0}, {"B": 0}, {"Dv": 0}, {"Tq": 1, "Tk": 1}], ids=str)
@kinds
def test_gradients_of_empty_operands(kind: str, sizes: dict[str, int]) -> None:
    check_gradients(problem_of(kind, mask="additive", mask_shape=(1, 1, 1, 1), sinks=True, **sizes))
    check_gradients(problem_of(kind, P=3, **sizes))


@kinds
def test_gradients_of_a_row_keep_their_bits_beside_others(kind: str) -> None:
    options: dict[str, Any] = {"Tq": 40, "Tk": 75, "causal": True}
    together = problem_of(kind, B=3, lengths=(75, 33, 60), **options)

    def only_second(arrays: dict[str, Array]) -> None:
        for name in ("q", "k", "v", "dout"):
            arrays[name] = together.values[name][1:2].astype(np.float32)

    alone = gradients(problem_of(kind, B=1, lengths=(33,), change=only_second, **options))
    for name, x in gradients(together).items():
        assert np.array_equal(bits(x[1:2]), bits(alone[name])), name


@pytest.mark.parametrize("name", ["k", "v"])
@kinds
def test_gradients_past_hidden_nans(kind: str, name: str) -> None:
    """dq where no NaN is seen, dk and dv where a key is hidden from all."""
    problem = problem_of(kind, lengths=(70, 13), mask="bool", change=poison_hidden(name))
    saved = problem.forward_outputs()
    launch_plan(problem.call().plan(), problem.inputs(), saved, check=False)
    finite = {n: np.isfinite(x) for n, x in gradients(problem, saved).items()}
    assert finite["q"][0, :, :40].all()
    assert not finite["q"][0, :, 40:].all(-1).any()
    assert finite["q"][1].all()
    for n in ("k", "v"):
        assert finite[n][0, :, 21:23].all()
        assert finite[n][1].all()


def check_almost_hidden(kind: str, dtype: str, **options: Any) -> None:
    """A mask of -1e9 hides a block of keys, and drowns the scores of queries of which it is all: they weigh all alike.

    So the oracle hides that block, and has these queries be zero until their scores are there.
    """
    drowned = [3, *range(32, 45)]

    def almost(arrays: dict[str, Array]) -> None:
        arrays["mask"][...] = 0
        arrays["mask"][..., 32:64] = -1e9
        arrays["mask"][:, :, drowned] = -1e9

    def exactly(arrays: dict[str, Array]) -> None:
        arrays["mask"][...] = 0
        arrays["mask"][..., 32:64] = -np.inf
        arrays["mask"][:, :, drowned] = 0
        arrays["q"][:, :, drowned] = 0

    sizes: dict[str, Any] = {"dtype": dtype, "mask": "additive", "B": 1, "heads": 1}
    problem = problem_of(kind, change=almost, **sizes)
    exact = attended(problem_of(kind, change=exactly, **sizes))
    b = Bounds(replace(exact, query=problem.values["q"]), Arithmetic.of(dtype, kind, problem.relaxed))
    saved = problem.forward_outputs()
    launch_plan(problem.call().plan(), problem.inputs(), saved)
    assert used(wide(saved[0], dtype), b.a.out, b.out()) <= 1.0
    dout = problem.values["dout"]
    expected, allowed = b.a.gradients(dout), b.gradients(dout)
    allowed["mask"] = b.mask(dout, problem.buffers["mask"].shape)
    for name, gradient in gradients(problem, saved, **options).items():
        assert used(gradient, expected[name], allowed[name]) <= 1.0, name


@pytest.mark.parametrize(
    ("kind", "dtype"), [("portable", "float32"), *(("tensorops", d) for d in ("float32", "bfloat16"))]
)
def test_gradients_beneath_a_mask_that_hides_almost(kind: str, dtype: str) -> None:
    check_almost_hidden(kind, dtype)


@kinds
def test_two_runs_of_gradients_agree(kind: str) -> None:
    problem = problem_of(kind, dtype="float16", D=80, P=7, causal=True, sinks=True, mask="additive")
    first = gradients(problem, check=False, order="forward")
    for name, x in gradients(problem, check=False, order="shuffled", seed=5).items():
        assert np.array_equal(bits(first[name]), bits(x)), name


def forward_problems() -> list[Problem]:
    """Those of which benchmarks/numerics.py gives the shares of the bounds."""
    features = [problem_of(kind, **keywords) for kind in KINDS for keywords in FEATURES.values()]
    heads = [problem_of(kind, dtype=dtype, D=D, **SMALL) for kind, dtype, D in HEADS]
    decoding = [Problem(**keywords) for keywords in DECODE.values()]
    return [*features, *heads, *decoding, *(Problem(**vector_head(dtype, D, 5)) for dtype, D in VECTOR_HEADS)]


def gradient_problems() -> list[Problem]:
    features = [problem_of(kind, **gradient_feature(feature)) for kind, feature in GRADIENTS]
    return [*features, *(problem_of(kind, dtype=dtype, D=D, **SMALL) for kind, dtype, D in GRADIENT_HEADS)]
