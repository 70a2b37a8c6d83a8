"""The sparse_max_pool shaders, run from their source in the emulator with every check on, against float64."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import mlx_tessl as mt

from ..ops.conformance.sparse_max_pool import SPARSE_MAX_POOL, sparse_max_pool_oracle
from ..ops.layouts import LAYOUTS
from ..ops.test_conformance import DTYPES, UNIT_ROUNDOFF, Case, fixed, float64, make, used_fraction

DEVICES = {"portable": ("m1", "14.0"), "tensorops": ("m5-pro", "26.4")}
TF32 = 2.0**-10  # of an operand, by truncation

devices = pytest.mark.parametrize("device", DEVICES)
dtypes = pytest.mark.parametrize("dtype", DTYPES)
each_case = pytest.mark.parametrize("case", SPARSE_MAX_POOL.cases, ids=lambda case: case.name)


def run(device: str, inputs: dict[str, Any], order: str = "forward", **keywords: Any) -> tuple[mx.array, list[str]]:
    """The result on a device, and the kernels that computed it."""
    arrays = {name: x for name, x in inputs.items() if isinstance(x, mx.array)}
    mx.eval(*arrays.values())
    keywords = {"precision": "exact", **inputs, **keywords}
    with mt.trace() as entries:
        with mt.emulate(*DEVICES[device], check=True, order=order, seed=1):  # type: ignore[arg-type]
            result = mt.sparse_max_pool(stream=mx.cpu, **keywords)
        mx.eval(result)
    assert {entry.backend for entry in entries} <= {"emulator"}
    return result, [launch.kernel for entry in entries for launch in entry.launches]


@each_case
@devices
@dtypes
def test_conformance(case: Case, device: str, dtype: str) -> None:
    inputs = make(case, dtype)
    result, kernels = run(device, inputs | fixed(case))
    assert used_fraction(SPARSE_MAX_POOL, case, inputs, [result], dtype) <= 1.0  # seen: 0.03 in float32
    assert len(kernels) == (1 if result.size else 0)


@devices
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(device: str, layout: str) -> None:
    case = SPARSE_MAX_POOL.cases[0]
    inputs = make(case, "float32", layout)
    result, kernels = run(device, inputs | fixed(case))
    assert used_fraction(SPARSE_MAX_POOL, case, inputs, [result], "float32") <= 1.0
    assert kernels[-1].startswith("sparse_max_pool")
    assert set(kernels[:-1]) <= {"copy_strided_uint32"}


@pytest.mark.parametrize("tokens", [1, 32, 33, 64, 65])
@pytest.mark.parametrize("words", [1, 64, 65])
@devices
def test_edges(device: str, tokens: int, words: int) -> None:
    rng = np.random.default_rng([tokens, words])
    hidden, weight = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, tokens, 12), (words, 12)))
    lengths = np.array([tokens, max(tokens - 1, 0)], np.int32)
    for pooling in ("max", "sum"):
        expected, magnitude = sparse_max_pool_oracle(hidden, weight, None, lengths, pooling=pooling)
        arrays = {"hidden": mx.array(hidden), "weight": mx.array(weight), "lengths": mx.array(lengths)}
        result, _ = run(device, arrays, pooling=pooling)
        assert np.all(np.abs(float64(result) - expected) <= (28 + tokens) * 2.0**-24 * magnitude + 1e-7)


@pytest.mark.parametrize(
    ("device", "dtype", "precision", "kernel"),
    [
        ("portable", "float32", "relaxed", "sparse_max_pool_portable_32_float32"),
        ("portable", "bfloat16", "exact", "sparse_max_pool_portable_32_bfloat16"),
        ("tensorops", "float32", "exact", "sparse_max_pool_tensorops_float32"),
        ("tensorops", "float32", "relaxed", "sparse_max_pool_tensorops_float32_relaxed"),
        ("tensorops", "float16", "exact", "sparse_max_pool_tensorops_float16"),
        ("tensorops", "bfloat16", "exact", "sparse_max_pool_tensorops_bfloat16"),
    ],
)
def test_kernel_by_device_and_dtype(device: str, dtype: str, precision: str, kernel: str) -> None:
    case = Case("whole", {"hidden": (2, 20, 320), "weight": (70, 320), "bias": (70,)})
    inputs = make(case, dtype)
    result, kernels = run(device, inputs, precision=precision)
    assert kernels == [kernel]
    expected, magnitude = sparse_max_pool_oracle(**{name: float64(x) for name, x in inputs.items()})
    operands = 2 * TF32 if kernel.endswith("relaxed") else 0.0
    allowed = (336 * 2.0**-24 + operands) * magnitude + UNIT_ROUNDOFF[dtype] * np.abs(expected) + 2.0**-25
    assert np.all(np.abs(float64(result) - expected) <= allowed)


@devices
def test_bits_depend_on_nothing_else(device: str) -> None:
    """Neither on other rows, nor on what pads them, nor on the order in which threadgroups run."""
    rng = np.random.default_rng(0)
    hidden, weight = (mx.array(rng.standard_normal(shape).astype(np.float32)) for shape in ((3, 70, 24), (65, 24)))
    for pooling in ("max", "sum"):
        lengths = mx.array([5, 70, 33])
        together, _ = run(device, {"hidden": hidden, "weight": weight, "lengths": lengths}, pooling=pooling)
        shuffled, _ = run(device, {"hidden": hidden, "weight": weight, "lengths": lengths}, "shuffled", pooling=pooling)
        assert mx.array_equal(together, shuffled).item()
        for row, length in enumerate(lengths.tolist()):
            alone, _ = run(device, {"hidden": hidden[row : row + 1, :length], "weight": weight}, pooling=pooling)
            assert mx.array_equal(alone[0], together[row]).item()


@devices
def test_nan_stays_in_its_row_and_padding_is_not_read(device: str) -> None:
    hidden = np.ones((3, 40, 8), np.float32)
    hidden[1, 3] = np.nan
    hidden[2, 30:] = np.nan
    arrays = {"hidden": mx.array(hidden), "weight": mx.ones((5, 8)), "lengths": mx.array([40, 40, 30])}
    for pooling in ("max", "sum"):
        result, _ = run(device, arrays, pooling=pooling)
        assert mx.isnan(result).any(axis=1).tolist() == [False, True, False]
        assert mx.isnan(result[1]).all().item()
        bias = mx.full((5,), mx.nan)
        result, _ = run(device, arrays | {"bias": bias, "lengths": mx.array([0, 1, 0])}, pooling=pooling)
        assert result[0].tolist() == result[2].tolist() == [0.0] * 5


@devices
def test_activations(device: str) -> None:
    """The logarithm from the least to the greatest logit; relatively as exact as 1 + x lets it be."""
    logits = np.concatenate([-np.logspace(-3, 3, 5), [0.0], np.logspace(-12, 38, 101), [np.inf]]).astype(np.float32)
    arrays = {"hidden": mx.ones((1, 1, 1)), "weight": mx.array(logits[:, None])}
    wide = np.maximum(logits.astype(np.float64), 0)
    for name, expected in (("log1p_relu", np.log1p(wide)), ("log1p_log1p_relu", np.log1p(np.log1p(wide)))):
        for pooling in ("max", "sum"):
            result, _ = run(device, arrays, activation=name, pooling=pooling)
            finite = np.isfinite(expected)
            ours = float64(result)[0]
            assert np.array_equal(ours[~finite], expected[~finite])
            ours, exact = ours[finite], expected[finite]
            assert np.all(np.abs(ours - exact) <= 8 * 2.0**-24 * exact)  # seen: 2.5
