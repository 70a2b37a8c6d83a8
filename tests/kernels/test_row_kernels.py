"""The shaders of the row ops, run from their source in the emulator with every check on, against float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import mlx_tessl as mt

from ..ops import test_rows as of_rows
from ..ops.conformance import SPECS, Case, OpSpec
from ..ops.conformance.rope import rope_tables
from ..ops.layouts import LAYOUTS
from ..ops.test_conformance import DTYPES, fixed, make, results, used_fraction

ROW_OPS = {
    "rms_norm",
    "layer_norm",
    "gated_rms_norm",
    "sigmoid_gate",
    "swiglu",
    "geglu",
    "rope",
    "qk_norm_rope",
    "row_sum",
    "row_max",
    "logsumexp",
    "softmax",
    "l2_normalize",
    "argmax",
    "sample",
    "segment_mean",
    "kv_store",
}
ROW_SPECS = [spec for spec in SPECS if spec.name in ROW_OPS]

each_case = pytest.mark.parametrize(
    ("spec", "case"),
    [pytest.param(spec, case, id=f"{spec.name}-{case.name}") for spec in ROW_SPECS for case in spec.cases],
)


def emulated(
    op: Callable[..., Any],
    inputs: dict[str, Any],
    keywords: dict[str, Any],
    device: tuple[str, str] = ("m1", "14.0"),
    check: bool = True,
) -> list[mx.array]:
    """The results of an op on a GPU, all checks on."""
    arrays = [x for x in (*inputs.values(), *keywords.values()) if isinstance(x, mx.array)]
    mx.eval(*arrays)
    with mt.trace() as entries:
        with mt.emulate(*device, check=check, seed=1):
            outputs = results(op(**inputs, **keywords, stream=mx.cpu))
        mx.eval(*outputs)
    assert {entry.backend for entry in entries} <= {"emulator"}
    assert entries or all(output.size == 0 for output in outputs)
    return outputs


LOGITS = np.array(
    [
        [np.nan, -np.inf, np.nan, -np.inf, -np.inf],
        [-np.inf, -np.inf, -np.inf, -np.inf, -np.inf],
        [np.nan, 1.0, 3.0, 3.0, 2.0],
        [-np.inf, 1.0, np.inf, 3.0, np.inf],
        [-0.0, 0.0, -1.0, -2.0, -3.0],
    ],
    np.float32,
)


@pytest.mark.parametrize(
    "keywords", [{}, {"top_k": 1}, {"top_k": 2}, {"top_p": 0.5}, {"top_k": 3, "top_p": 0.9}], ids=str
)
def test_choice_outside_the_reals(keywords: dict[str, Any]) -> None:
    """No number above minus infinity gives 0; NaN is never chosen, the first infinity is, and -0 ties with 0."""
    x, cold = mx.array(LOGITS), {"key": mx.random.key(0), "temperature": 1e-30, **keywords}
    expected = [0, 0, 2, 2, 0]
    assert mx.array_equal(mt.argmax(x, stream=mx.cpu), mx.array(expected))
    assert mx.array_equal(emulated(mt.argmax, {"logits": x}, {})[0], mx.array(expected))
    shader = emulated(mt.sample, {"logits": x}, cold)[0].tolist()
    assert shader == mt.sample(x, **cold, stream=mx.cpu).tolist()
    assert shader[:2] == [0, 0]
    assert shader[2] in {2, 3}
    assert shader[3] == 2


@pytest.mark.parametrize("keywords", [{"top_k": 1}, {"top_p": 0.3}], ids=str)
@pytest.mark.parametrize("least", [1.0, 1.0000001], ids=["all_bits", "last_bit"])
def test_a_threshold_is_exact(keywords: dict[str, Any], least: float) -> None:
    """The next float below the threshold is left out."""
    row = np.array([-5.0, np.nextafter(np.float32(least), np.float32(0)), least, -5.0, -5.0], np.float32)
    logits, key = mx.array(np.tile(row, (16, 1))), mx.random.key(2)
    for choices in (
        mt.sample(logits, key=key, **keywords),
        emulated(mt.sample, {"logits": logits}, {"key": key, **keywords})[0],
    ):
        assert mx.all(choices == 2).item()


def test_every_row_op_is_here() -> None:
    assert {spec.name for spec in ROW_SPECS} == ROW_OPS


@each_case
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["contiguous", "offset"])
def test_result(spec: OpSpec, case: Case, dtype: str, layout: str) -> None:
    inputs = make(case, dtype, layout)
    outputs = emulated(spec.op, inputs, fixed(case))
    assert used_fraction(spec, case, inputs, outputs, dtype) <= 1.0


@pytest.mark.parametrize("spec", ROW_SPECS, ids=lambda spec: spec.name)
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name not in {"contiguous", "offset"}])
def test_layouts(spec: OpSpec, layout: str) -> None:
    case = spec.cases[0]
    inputs = make(case, "float32", layout)
    assert used_fraction(spec, case, inputs, emulated(spec.op, inputs, fixed(case)), "float32") <= 1.0


# Columns on both sides of where a row changes its team, and beyond the longest team's one pass.
WIDTHS = [1, 127, 128, 512, 513, 1024, 4096, 4097, 9001, 65537]


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("name", ["layer_norm", "softmax", "l2_normalize", "row_max"])
def test_widths(name: str, columns: int) -> None:
    spec = next(spec for spec in ROW_SPECS if spec.name == name)
    shapes = {"x": (3, columns)}
    if name == "layer_norm":
        shapes |= {"weight": (columns,), "bias": (columns,), "residual": (3, columns)}
    case = Case(f"width_{columns}", shapes)
    inputs = make(case, "float32")
    assert used_fraction(spec, case, inputs, emulated(spec.op, inputs, {}), "float32") <= 1.0


QK_SHAPES = {"q": (2, 3, 32), "k": (1, 3, 32), "q_weight": (32,), "k_weight": (32,)}
# Whose squares no half holds, whose squares are as small as eps, and positions that are not those of any half.
RANGES = [
    ("rms_norm", Case("large", {"x": (5, 37), "weight": (37,)}, factors={"x": 1e3})),
    ("layer_norm", Case("large", {"x": (5, 37), "weight": (37,), "bias": (37,)}, factors={"x": 1e3})),
    ("gated_rms_norm", Case("small", {"x": (5, 37), "gate": (5, 37), "weight": (37,)}, factors={"x": 1e-3})),
    ("l2_normalize", Case("large", {"x": (5, 37)}, factors={"x": 1e3})),
    ("rope", Case("far", {"x": (3, 16)}, integers=rope_tables([4099, 30001, 65535], 16))),
    ("qk_norm_rope", Case("small", QK_SHAPES, integers=rope_tables([0, 1, 2], 32), factors={"q": 1e-3, "k": 1e-3})),
]


def held(name: str, case: Case, inputs: dict[str, mx.array], dtype: str) -> None:
    spec = next(spec for spec in ROW_SPECS if spec.name == name)
    assert used_fraction(spec, case, inputs, emulated(spec.op, inputs, fixed(case)), dtype) <= 1.0


@pytest.mark.parametrize(("name", "case"), RANGES, ids=lambda x: x if isinstance(x, str) else x.name)
@pytest.mark.parametrize("dtype", DTYPES)
def test_range(name: str, case: Case, dtype: str) -> None:
    held(name, case, make(case, dtype), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_mean_far_from_zero(dtype: str) -> None:
    case = Case("far", {"x": (5, 300)}, {"weight": None, "bias": None})
    held("layer_norm", case, {"x": (1e3 + mx.array(case.arrays()["x"])).astype(DTYPES[dtype])}, dtype)


def test_sums_are_of_float32() -> None:
    """2048 + 1 is 2048 in half. One thread adds what is 128 columns, or 8 rows of a segment, apart."""
    terms = mx.array([2048, 1, -2048], mx.float16)
    x = mx.zeros((1, 384), mx.float16)
    x[0, ::128] = terms
    assert emulated(mt.row_sum, {"x": x}, {})[0].item() == 1
    x = mx.zeros((24, 5), mx.float16)
    x[::8] = terms[:, None]
    (mean,) = emulated(mt.segment_mean, {"x": x}, {"starts": mx.array([0]), "lengths": mx.array([24])})
    assert mx.array_equal(mean, mx.full((1, 5), 1 / 24, mx.float16))


PROMISES: dict[str, Callable[[], None]] = {
    "mean": of_rows.test_a_large_mean_cancels_nothing,
    "sum": partial(of_rows.test_the_norm_is_of_the_sum_before_its_rounding, mx.float16),
    "nan": of_rows.test_nan_stays_in_its_row,
    "gates": partial(of_rows.test_gates_of_great_size, mx.float32),
    "halves": of_rows.test_halves_of_one_product_are_read_in_place,
    "angles": of_rows.test_angles_at_long_positions,
    "parts": of_rows.test_qk_norm_rope_is_its_parts,
    "segments": of_rows.test_nan_stays_in_its_segment,
}


@pytest.mark.parametrize("test", PROMISES.values(), ids=PROMISES)
def test_what_the_cpu_promises(test: Callable[[], None]) -> None:
    """Tests of the CPU code, which ask the shaders instead."""
    with mt.trace() as entries, mt.emulate("m1", "14.0", check=True, seed=1):
        test()
    assert {entry.backend for entry in entries} == {"emulator"}


def test_wide_rows_below_zero() -> None:
    x = -1 - mx.abs(mx.array(np.random.default_rng(0).standard_normal((3, 600)).astype(np.float32)))
    assert mx.array_equal(emulated(mt.row_max, {"x": x}, {})[0], mx.max(x, axis=-1))
    assert mx.array_equal(emulated(mt.argmax, {"logits": x}, {})[0], mx.argmax(x, axis=-1))


def test_zeros_tie() -> None:
    logits = mx.array(np.tile(np.array([-0.0, 0.0, -1.0], np.float32), (16, 1)))
    for choices in (
        mt.sample(logits, key=mx.random.key(0), top_k=1),
        emulated(mt.sample, {"logits": logits}, {"key": mx.random.key(0), "top_k": 1})[0],
    ):
        assert set(choices.tolist()) == {0, 1}  # type: ignore[arg-type]


def test_top_p_is_of_what_top_k_left() -> None:
    """0.6 of the mass of the first two is in the first; of the mass of all it is in neither."""
    logits, keywords = mx.zeros((16, 40)), {"key": mx.random.key(0), "top_k": 2, "top_p": 0.6}
    logits[:, 3], logits[:, 7] = 2.0, 1.0
    for choices in (mt.sample(logits, **keywords), emulated(mt.sample, {"logits": logits}, keywords)[0]):
        assert mx.all(choices == 3).item()


def test_segments_that_are_strided() -> None:
    x = mx.array(np.random.default_rng(0).standard_normal((9, 5)).astype(np.float32))
    pairs = mx.array([[0, 4], [3, 2], [5, 1]])
    (means,) = emulated(mt.segment_mean, {"x": x}, {"starts": pairs[:, 0], "lengths": pairs[:, 1]})
    expected = mx.stack([x[start : start + length].mean(axis=0) for start, length in pairs.tolist()])
    assert mx.allclose(means, expected, atol=1e-6)


@pytest.mark.parametrize("columns", [40, 600])
def test_a_row_keeps_its_bits_beside_others(columns: int) -> None:
    x = mx.array(np.random.default_rng(0).standard_normal((11, columns)).astype(np.float32))
    (together,) = emulated(mt.softmax, {"x": x}, {})
    (alone,) = emulated(mt.softmax, {"x": x[7:8]}, {})
    assert mx.array_equal(together[7:8], alone)


SPECIAL = np.array(
    [
        [-np.inf, -np.inf, -np.inf, -np.inf, -np.inf],
        [-np.inf, 2.0, -np.inf, 1.0, 0.0],
        [1.0, np.nan, 2.0, 3.0, 4.0],
        [-np.inf, np.nan, -np.inf, -np.inf, -np.inf],
        [3e38, 3e38, -3e38, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.0, 0.0],
    ],
    np.float32,
)


@pytest.mark.parametrize("name", ["softmax", "logsumexp", "row_max"])
def test_outside_the_reals(name: str) -> None:
    op, twin = getattr(mt, name), getattr(mt.reference, name)
    x = mx.array(SPECIAL)
    (shader,) = emulated(op, {"x": x}, {})
    cpu, meaning = op(x, stream=mx.cpu), twin(x, stream=mx.cpu)
    for result in (shader, cpu):
        assert mx.allclose(result, meaning, rtol=1e-6, atol=1e-7, equal_nan=True), (result, meaning)
