"""The shaders of gated_delta and causal_conv1d, run from their source with every check on, against float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import mlx_tessl as mt

from ..ops import gated_delta_oracle as oracle
from ..ops.layouts import LAYOUTS
from ..ops.test_gated_delta import arrays, convolution_problem, error, problem

TYPED = [(mx.float32, 2e-6), (mx.float16, 1e-3), (mx.bfloat16, 8e-3)]


M1, M5 = ("m1", "14.0"), ("m5-pro", "26.4")


def emulated(
    op: Callable[..., Any], *positional: mx.array, device: tuple[str, str] = M1, **inputs: Any
) -> tuple[list[mx.array], list[str]]:
    """The results of an op on a first GPU, or another, and its kernels."""
    mx.eval([x for x in (*positional, *inputs.values()) if x is not None and not isinstance(x, bool | str)])
    with mt.trace() as entries:
        with mt.emulate(*device, check=True, order="shuffled", seed=1):
            outputs = list(op(*positional, **inputs, stream=mx.cpu))
        mx.eval(outputs)
    assert {entry.backend for entry in entries} <= {"emulator"}
    return outputs, [launch.kernel for entry in entries for launch in entry.launches]


@pytest.mark.parametrize(("dtype", "bound"), TYPED, ids=lambda x: str(x))
@pytest.mark.parametrize("T", [1, 9])
def test_gated_delta(dtype: mx.Dtype, bound: float, T: int) -> None:
    inputs = problem(B=2, T=T, Dk=40, Dv=21)
    operands = arrays(inputs, dtype)
    (y, state), kernels = emulated(mt.gated_delta, **operands, normalize_qk=True)
    assert kernels == [f"gated_delta_{str(dtype).removeprefix('mlx.core.')}_64"]  # one launch
    wide = {name: np.array(x.astype(mx.float32)) for name, x in operands.items()}
    expected_y, expected_state = oracle.recurrence(**wide, normalize_qk=True)
    assert y.dtype == dtype
    assert error(y, expected_y) <= bound
    assert error(state, expected_state) <= 2e-6  # observed: 3e-7


@pytest.mark.parametrize("T", [16, 64, 70, 130])
@pytest.mark.parametrize("with_state", [True, False])
def test_chunks(T: int, with_state: bool) -> None:
    inputs = problem(B=1, T=T, Hk=1, Hv=2, Dk=40, Dv=21)
    if not with_state:
        del inputs["state"]
    (y, state), kernels = emulated(mt.gated_delta, **arrays(inputs), normalize_qk=True)
    assert kernels == ["gated_delta_prepare_float32", "gated_delta_scan_float32"]
    expected_y, expected_state = oracle.recurrence(**inputs, normalize_qk=True)
    assert error(y, expected_y) <= 2e-6
    assert error(state, expected_state) <= 2e-6


@pytest.mark.parametrize(("dtype", "bound"), TYPED, ids=lambda x: str(x))
def test_chunks_of_released_sizes(dtype: mx.Dtype, bound: float) -> None:
    """Gates folded in, 128 columns of K."""
    inputs = {n: x for n, x in arrays(problem(B=1, T=70, Hk=1, Hv=1, Dk=128, Dv=32), dtype).items()}
    del inputs["g"], inputs["beta"]
    rng = np.random.default_rng(5)
    a, b = (mx.array(rng.standard_normal((1, 70, 1)).astype(np.float32)).astype(dtype) for _ in range(2))
    A_log, dt_bias = (mx.array(rng.standard_normal(1).astype(np.float32)) for _ in range(2))
    (y, state), _ = emulated(mt.gated_delta, **inputs, gates=(a, b, A_log, dt_bias), normalize_qk=True)
    g, beta = oracle.gates(*(np.array(x.astype(mx.float32)) for x in (a, b, A_log, dt_bias)))
    wide = {name: np.array(x.astype(mx.float32)) for name, x in inputs.items()}
    expected_y, expected_state = oracle.recurrence(**wide, g=g, beta=beta, normalize_qk=True)
    assert error(y, expected_y) <= bound
    assert error(state, expected_state) <= 2e-6


# Of tf32 operands, in units of the largest magnitude: observed 2e-3 of y, 1.5e-3 of the state.
TF32_ERROR = 4e-3
ON_MATRIX_UNITS = {"device": M5, "precision": "relaxed", "normalize_qk": True}


@pytest.mark.parametrize("T", [16, 64, 65, 130])
@pytest.mark.parametrize("with_state", [True, False])
def test_matrix_units(T: int, with_state: bool) -> None:
    inputs = problem(B=1, T=T, Hk=1, Hv=2, Dk=40, Dv=37)
    if not with_state:
        del inputs["state"]
    (y, state), kernels = emulated(mt.gated_delta, **arrays(inputs), **ON_MATRIX_UNITS)
    assert kernels == ["gated_delta_tensorops_prepare_float32", "gated_delta_tensorops_scan_float32"]
    expected_y, expected_state = oracle.recurrence(**inputs, normalize_qk=True)
    assert error(y, expected_y) <= TF32_ERROR
    assert error(state, expected_state) <= TF32_ERROR


@pytest.mark.parametrize("Dk", [64, 128])
@pytest.mark.parametrize(("dtype", "bound"), [(mx.float16, 3e-3), (mx.bfloat16, 8e-3)], ids=str)
def test_matrix_units_of_released_sizes(dtype: mx.Dtype, bound: float, Dk: int) -> None:
    """Slices of one projection, gates folded in."""
    rng = np.random.default_rng(5)
    inputs = arrays(problem(B=1, T=70, Hk=1, Hv=1, Dk=Dk, Dv=64), dtype)
    together = mx.concatenate([inputs[n].reshape(1, 70, -1) for n in "qkv"], axis=-1)
    q, k, v = (mx.expand_dims(x, 2) for x in mx.split(together, [Dk, 2 * Dk], axis=-1))
    a, b = (mx.array(rng.standard_normal((1, 70, 1)).astype(np.float32)).astype(dtype) for _ in range(2))
    A_log, dt_bias = (mx.array(rng.standard_normal(1).astype(np.float32)) for _ in range(2))
    operands = {"q": q, "k": k, "v": v, "state": inputs["state"]}
    mx.eval(operands)
    (y, state), _ = emulated(mt.gated_delta, **operands, gates=(a, b, A_log, dt_bias), **ON_MATRIX_UNITS)
    g, beta = oracle.gates(*(np.array(x.astype(mx.float32)) for x in (a, b, A_log, dt_bias)))
    wide = {name: np.array(x.astype(mx.float32)) for name, x in operands.items()}
    expected_y, expected_state = oracle.recurrence(**wide, g=g, beta=beta, normalize_qk=True)
    assert error(y, expected_y) <= bound
    assert error(state, expected_state) <= TF32_ERROR


def test_matrix_units_of_whole_numbers() -> None:
    """Products of small integers leave nothing to truncate: tokens write what others read, to the bit."""
    rng = np.random.default_rng(1)
    k = np.zeros((1, 100, 1, 64), np.float32)
    k[0, np.arange(64), 0, np.arange(64)] = 1
    q, v = (rng.integers(-2, 3, (1, 100, 1, n)).astype(np.float32) for n in (64, 33))
    beta = (np.arange(100) < 64).astype(np.float32).reshape(1, 100, 1)
    operands = [mx.array(x) for x in (q, k, v, np.zeros_like(beta), beta)]
    (y, state), _ = emulated(mt.gated_delta, *operands, device=M5, precision="relaxed")
    rows = np.tril(np.ones((100, 64))) * q[0, :, 0]
    assert np.array_equal(np.array(y)[0, :, 0], rows @ v[0, :64, 0])
    assert np.array_equal(np.array(state)[0, 0], v[0, :64, 0].T)


@pytest.mark.parametrize("device", [M1, M5], ids=["m1", "m5"])
def test_exact_products_stay_off_the_matrix_units(device: tuple[str, str]) -> None:
    inputs = arrays(problem(B=1, T=16, Hk=1, Hv=1, Dk=8, Dv=8))
    _, kernels = emulated(mt.gated_delta, **inputs, device=device, precision="exact")
    assert kernels == ["gated_delta_prepare_float32", "gated_delta_scan_float32"]


@pytest.mark.parametrize("hard", ["strong_decay", "equal_keys"])
def test_hard_chunks(hard: str) -> None:
    inputs = problem(B=1, T=64, Hk=1, Hv=1, Dk=32, Dv=16)
    if hard == "strong_decay":
        inputs["g"] *= 0.1
        inputs["g"][:, 3] = -1e6
    else:
        inputs["k"] = np.broadcast_to(inputs["k"][:, :1], inputs["k"].shape).copy()
        inputs["g"] *= 1e-3
        inputs["beta"] = np.full_like(inputs["beta"], 0.99)
    (y, state), _ = emulated(mt.gated_delta, **arrays(inputs), normalize_qk=True)
    expected_y, expected_state = oracle.recurrence(**inputs, normalize_qk=True)
    assert error(y, expected_y) <= 1e-5
    assert error(state, expected_state) <= 1e-5


@pytest.mark.parametrize("device", [M1, M5], ids=["m1", "m5"])
def test_ragged_chunks_have_the_bits_of_rows_alone(device: tuple[str, str]) -> None:
    """Long rows by chunks, short ones token by token, none at all: each as it would go alone."""
    T = 70
    inputs = problem(B=5, T=T, Hk=1, Hv=1, Dk=16, Dv=16)
    starts, lengths = [0, 5, 0, 60, T], [T, T, 3, T, T]
    hidden = {name: x.copy() for name, x in inputs.items()}
    for b, (start, end) in enumerate(zip(starts, lengths, strict=True)):
        for name in ("q", "k", "v", "g", "beta"):
            hidden[name][b, :start] = hidden[name][b, end:] = np.nan
    ranges = {"starts": mx.array(starts), "lengths": mx.array(lengths)}
    where = {"device": device, "precision": "relaxed", "normalize_qk": True}
    (y, state), kernels = emulated(mt.gated_delta, **arrays(hidden), **ranges, **where)
    family = "gated_delta_tensorops" if device == M5 else "gated_delta"
    assert kernels == [f"{family}_prepare_float32", f"{family}_scan_float32", "gated_delta_float32_32"]
    for b, (start, end) in enumerate(zip(starts, lengths, strict=True)):
        own = {n: x[b : b + 1] if n == "state" else x[b : b + 1, start:end] for n, x in inputs.items()}
        own_state = mx.array(own["state"])
        if end > start:
            (own_y, own_state), _ = emulated(mt.gated_delta, **arrays(own), **where)
            assert mx.array_equal(y[b : b + 1, start:end], own_y)
        assert mx.array_equal(state[b : b + 1], own_state)
        assert not mx.any(y[b, :start]).item()
        assert not mx.any(y[b, end:]).item()


@pytest.mark.parametrize("device", [M1, M5], ids=["m1", "m5"])
def test_pieces_of_whole_chunks_have_the_bits_of_the_whole(device: tuple[str, str]) -> None:
    """What is left after them has at least the 16 tokens of a chunk, or would go token by token."""
    inputs = arrays(problem(B=1, T=144, Hk=1, Hv=1, Dk=16, Dv=16))
    where = {"device": device, "precision": "relaxed", "normalize_qk": True}
    (whole_y, whole_state), _ = emulated(mt.gated_delta, **inputs, **where)
    state = inputs.pop("state")
    ys = []
    for begin in (0, 64, 128):
        piece = {name: x[:, begin : begin + 64] for name, x in inputs.items()}
        (y, state), _ = emulated(mt.gated_delta, **piece, state=state, **where)
        ys.append(y)
    assert mx.array_equal(mx.concatenate(ys, axis=1), whole_y)
    assert mx.array_equal(state, whole_state)


@pytest.mark.parametrize("Dk", [1, 32, 33, 128, 256])
@pytest.mark.parametrize("normalize_qk", [True, False])
def test_widths(Dk: int, normalize_qk: bool) -> None:
    inputs = problem(B=1, T=3, Hk=1, Hv=2, Dk=Dk, Dv=5)
    if not normalize_qk:
        inputs["k"] /= np.sqrt(Dk)
    (y, state), _ = emulated(mt.gated_delta, **arrays(inputs), normalize_qk=normalize_qk)
    expected_y, expected_state = oracle.recurrence(**inputs, normalize_qk=normalize_qk)
    assert error(y, expected_y) <= 2e-6
    assert error(state, expected_state) <= 2e-6


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_gates(dtype: mx.Dtype) -> None:
    inputs = {n: x for n, x in arrays(problem(B=1, T=8), dtype).items() if n not in {"g", "beta"}}
    rng = np.random.default_rng(5)
    a = mx.array((8 * rng.standard_normal((1, 8, 4))).astype(np.float32)).astype(dtype)
    b = mx.array((2 * rng.standard_normal((1, 8, 4))).astype(np.float32)).astype(dtype)
    A_log, dt_bias = (mx.array(rng.standard_normal(4).astype(np.float32)) for _ in range(2))
    (y, state), _ = emulated(mt.gated_delta, **inputs, gates=(a, b, A_log, dt_bias), normalize_qk=True)
    g, beta = oracle.gates(*(np.array(x.astype(mx.float32)) for x in (a, b, A_log, dt_bias)))
    wide = {name: np.array(x.astype(mx.float32)) for name, x in inputs.items()}
    expected_y, expected_state = oracle.recurrence(**wide, g=g, beta=beta, normalize_qk=True)
    assert error(y, expected_y) <= (2e-6 if dtype == mx.float32 else 8e-3)
    assert error(state, expected_state) <= 2e-6


def test_softplus_keeps_its_digits() -> None:
    """A single token whose decay is within 1e-6 of 1: 1 - e^g, seen through a large state, is softplus(a)."""
    a = mx.array(np.linspace(-14, 4, 19, dtype=np.float32)).reshape(1, 1, 19)
    zeros, ones = mx.zeros((1, 1, 1, 1)), mx.ones((1, 1, 19, 1))
    A_log = mx.full((19,), 10.0)  # e^10 makes of a small softplus a decay that can be told from 1
    gates = (a, mx.zeros((1, 1, 19)), A_log, mx.zeros((19,)))
    (_, state), _ = emulated(mt.gated_delta, zeros, zeros, ones, state=mx.ones((1, 19, 1, 1)), gates=gates)
    rate = np.exp(np.float64(10))
    expected = np.exp(-rate * np.logaddexp(np.array(a).astype(np.float64).ravel(), 0))
    found = np.array(state).ravel()
    # e^-x errs by x times the relative error of x.
    x = -np.log(np.maximum(expected, 1e-300))
    assert np.all(np.abs(found - expected) <= 2e-6 * (1 + x) * expected + 1e-30)


@pytest.mark.parametrize("T", [1, 6])
def test_ragged_rows(T: int) -> None:
    """Poisoned tokens are not read, rows have the bits of rows alone, and a snapshot serves all of them."""
    inputs = problem(B=4, T=T)
    starts, lengths = [0, min(2, T), 0, T], [T, T + 3, max(T - 2, 0), T]
    hidden = {name: x.copy() for name, x in inputs.items()}
    for b, (start, end) in enumerate(zip(starts, lengths, strict=True)):
        for name in ("q", "k", "v", "g", "beta"):
            hidden[name][b, :start] = hidden[name][b, end:] = np.nan
    snapshot = mx.array(inputs["state"][:1])
    operands = {**arrays(hidden), "state": snapshot}
    ranges = {"starts": mx.array(starts), "lengths": mx.array(lengths)}
    (y, state), _ = emulated(mt.gated_delta, **operands, **ranges, normalize_qk=True)
    assert mx.array_equal(snapshot, mx.array(inputs["state"][:1]))
    for b, (start, end) in enumerate(zip(starts, lengths, strict=True)):
        own = {n: x[:1] if n == "state" else x[b : b + 1, start : min(end, T)] for n, x in inputs.items()}
        if own["q"].shape[1]:
            (own_y, own_state), _ = emulated(mt.gated_delta, **arrays(own), normalize_qk=True)
            assert mx.array_equal(y[b : b + 1, start:end], own_y)
        else:
            own_state = mx.array(own["state"])
        assert mx.array_equal(state[b : b + 1], own_state)
        assert not mx.any(y[b, :start]).item()
        assert not mx.any(y[b, end:]).item()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str) -> None:
    inputs = problem(B=2, T=3, Dk=16, Dv=6)
    operands = {name: LAYOUTS[layout](x, mx.float32) for name, x in inputs.items()}
    (y, state), _ = emulated(mt.gated_delta, **operands, normalize_qk=True)
    expected_y, expected_state = oracle.recurrence(**inputs, normalize_qk=True)
    assert error(y, expected_y) <= 2e-6
    assert error(state, expected_state) <= 2e-6
    x, weight, before = (LAYOUTS[layout](a, mx.float32) for a in convolution_problem(2, 5))
    (y, last), _ = emulated(mt.causal_conv1d, x, weight, before)
    expected_y, expected_last = oracle.convolution(*convolution_problem(2, 5))
    assert error(y, expected_y) <= 1e-6
    assert np.array_equal(np.array(last), expected_last.astype(np.float32))


@pytest.mark.parametrize("without_state", [True, False])
@pytest.mark.parametrize("T", [0, 1])
def test_state_alone(T: int, without_state: bool) -> None:
    inputs = arrays(problem(B=2, T=T))
    if without_state:
        del inputs["state"]
    (y, state), _ = emulated(mt.gated_delta, **inputs, normalize_qk=True)
    expected_y, expected_state = oracle.recurrence(**{n: np.array(x) for n, x in inputs.items()}, normalize_qk=True)
    assert y.shape == expected_y.shape
    assert error(state, expected_state) <= 2e-6


def test_a_row_too_wide_is_refused() -> None:
    with mt.emulate("m1", "14.0"), pytest.raises(ValueError, match=r"^\[mlx_tessl.gated_delta\] q has rows of 257"):
        mt.gated_delta(**arrays(problem(B=1, T=1, Dk=257)), stream=mx.cpu)


@pytest.mark.parametrize(("dtype", "bound"), [(mx.float32, 1e-6), (mx.float16, 1e-3), (mx.bfloat16, 8e-3)], ids=str)
@pytest.mark.parametrize("T", [0, 1, 3, 70])
@pytest.mark.parametrize("activation", ["silu", None])
def test_causal_conv1d(dtype: mx.Dtype, bound: float, T: int, activation: str | None) -> None:
    x, weight, state = (mx.array(a).astype(dtype) for a in convolution_problem(2, T, C=67))
    for given in (None, state, state[:1], state[0]):
        (y, last), _ = emulated(mt.causal_conv1d, x, weight, given, activation=activation)
        wide = [None if a is None else np.array(a.astype(mx.float32)) for a in (x, weight, given)]
        expected_y, expected_last = oracle.convolution(*wide, activation)  # type: ignore[arg-type]
        assert error(y, expected_y) <= bound
        assert np.array_equal(np.array(last.astype(mx.float32)), expected_last.astype(np.float32))


def test_ragged_convolution() -> None:
    x, weight, state = convolution_problem(5, 9)
    starts, lengths = [0, 2, 0, 9, 4], [9, 9, 5, 9, 6]
    hidden = x.copy()
    for b, (start, end) in enumerate(zip(starts, lengths, strict=True)):
        hidden[b, :start] = hidden[b, end:] = np.nan
    ranges = {"starts": mx.array(starts), "lengths": mx.array(lengths)}
    (y, last), _ = emulated(mt.causal_conv1d, mx.array(hidden), mx.array(weight), mx.array(state), **ranges)
    for b, (start, end) in enumerate(zip(starts, lengths, strict=True)):
        expected_y, expected_last = oracle.convolution(x[b : b + 1, start:end], weight, state[b : b + 1])
        assert error(y[b : b + 1, start:end], expected_y) <= 1e-6
        assert np.array_equal(np.array(last[b : b + 1]), expected_last.astype(np.float32))
        assert not mx.any(y[b, :start]).item()
        assert not mx.any(y[b, end:]).item()
