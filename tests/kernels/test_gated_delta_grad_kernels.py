"""The shaders of the gradients of gated_delta and causal_conv1d, with every check on, against float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import mlx_tessl as mt

from ..ops import gated_delta_oracle as oracle
from ..ops.test_gated_delta import arrays, convolution_problem, error, problem

Arrays = dict[str, mx.array]
BOUND = 1e-5  # of the largest magnitude; observed: 2e-6
DELTA = ["gated_delta_prepare", "gated_delta_scan"]
DELTA += ["gated_delta_grad_scan", "gated_delta_grad_scores", "gated_delta_grad_rows"]
CONVOLUTION = [f"causal_conv1d_grad_{name}" for name in ("sums", "inputs", "weights", "reduce")]


def emulated_gradients(
    op: Callable[..., Any], operands: Arrays, cotangents: list[mx.array], check: bool = True, **fixed: Any
) -> tuple[Arrays, list[str]]:
    """The gradients of all operands on a first GPU, and the kernels of our gradient."""
    mx.eval(operands, cotangents, [x for x in fixed.values() if isinstance(x, mx.array)])
    names = list(operands)

    def results(*values: mx.array) -> list[mx.array]:
        return list(op(**dict(zip(names, values, strict=True)), **fixed, stream=mx.cpu))

    with mt.trace() as entries:
        with mt.emulate("m1", "14.0", check=check, order="shuffled", seed=1):
            _, gradients = mx.vjp(results, list(operands.values()), cotangents)
        mx.eval(gradients)
    ours = [entry for entry in entries if entry.op.endswith("_gradient")]
    assert {entry.backend for entry in ours} <= {"emulator"}
    kernels = [launch.kernel.rsplit("_", 1)[0] for entry in ours for launch in entry.launches]
    return dict(zip(names, gradients, strict=True)), kernels


def cotangents_of(inputs: dict[str, np.ndarray], seed: int = 7) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    (B, T, _, Dk), (Hv, Dv) = inputs["q"].shape, inputs["v"].shape[2:]
    return [rng.standard_normal(shape).astype(np.float32) for shape in ((B, T, Hv, Dv), (B, Hv, Dv, Dk))]


def typed(dy: np.ndarray, dstate: np.ndarray, dtype: mx.Dtype = mx.float32) -> list[mx.array]:
    return [mx.array(dy).astype(dtype), mx.array(dstate)]


def wide(x: mx.array) -> np.ndarray:
    return np.array(x.astype(mx.float32))


@pytest.mark.parametrize("T", [1, 63, 64, 65, 150])
@pytest.mark.parametrize("normalize_qk", [True, False])
def test_gated_delta(T: int, normalize_qk: bool) -> None:
    """Two value heads to a key head, widths that are no multiples of anything."""
    inputs = problem(B=1, T=T, Hk=1, Hv=2, Dk=40, Dv=21)
    if not normalize_qk:
        inputs["k"] /= np.sqrt(40)
    dy, dstate = cotangents_of(inputs)
    found, kernels = emulated_gradients(mt.gated_delta, arrays(inputs), typed(dy, dstate), normalize_qk=normalize_qk)
    assert kernels == DELTA
    expected = oracle.recurrence_gradients(**inputs, dy=dy, dstate=dstate, normalize_qk=normalize_qk)
    for name, gradient in found.items():
        assert error(gradient, expected[name]) <= BOUND, name


@pytest.mark.parametrize(("dtype", "bound"), [(mx.float16, 1e-3), (mx.bfloat16, 8e-3)], ids=str)
def test_half_types(dtype: mx.Dtype, bound: float) -> None:
    """Computed in float32 from operands as they are, and rounded once. Released widths."""
    inputs = problem(B=1, T=66, Hk=1, Hv=1, Dk=128, Dv=32)
    operands, cotangents = arrays(inputs, dtype), typed(*cotangents_of(inputs), dtype)
    found, kernels = emulated_gradients(mt.gated_delta, operands, cotangents, check=False, normalize_qk=True)
    assert kernels == DELTA
    exact = {name: wide(x) for name, x in operands.items()}
    expected = oracle.recurrence_gradients(
        **exact, dy=wide(cotangents[0]), dstate=wide(cotangents[1]), normalize_qk=True
    )
    for name, gradient in found.items():
        assert gradient.dtype == operands[name].dtype
        assert error(gradient, expected[name]) <= (bound if name in "qkv" else BOUND), name


@pytest.mark.parametrize("with_gates", [False, True])
def test_ragged_rows(with_gates: bool) -> None:
    """Tokens outside of the ranges hold NaN; rows of two chunks, of few tokens, of none; one state for all."""
    T, starts, lengths = 70, [0, 5, 0, 60, 70], [70, 72, 3, 70, 70]
    inputs = problem(B=5, T=T, Hk=1, Hv=2, Dk=16, Dv=18)
    dy, dstate = cotangents_of(inputs)
    rng = np.random.default_rng(3)
    a, b = (2 * rng.standard_normal((5, T, 2)).astype(np.float32) for _ in range(2))
    A_log, dt_bias = (rng.standard_normal(2).astype(np.float32) for _ in range(2))
    if with_gates:
        inputs["g"], inputs["beta"] = oracle.gates(a, b, A_log, dt_bias)
    inputs["state"] = np.repeat(inputs["state"][:1], 5, axis=0)

    expected = {name: np.zeros(x.shape) for name, x in inputs.items() if name != "state"}
    expected["state"] = np.zeros(inputs["state"].shape[1:])
    hidden = {**inputs, "a": a, "b": b, "dy": dy}
    hidden = {name: x.astype(np.float32) for name, x in hidden.items()}
    for row, (start, end) in enumerate(zip(starts, lengths, strict=True)):
        span = slice(start, min(end, T))
        own = {n: x[row : row + 1] if n == "state" else x[row : row + 1, span] for n, x in inputs.items()}
        gradients = oracle.recurrence_gradients(
            **own, dy=dy[row : row + 1, span], dstate=dstate[row : row + 1], normalize_qk=True
        )
        for name, gradient in gradients.items():
            if name == "state":
                expected[name] += gradient[0]
            else:
                expected[name][row, span] = gradient[0]
        for name in ("q", "k", "v", "g", "beta", "a", "b", "dy"):
            hidden[name][row, :start] = hidden[name][row, end:] = np.nan
    operands = {name: mx.array(hidden[name]) for name in "qkv"} | {"state": mx.array(inputs["state"][0])}
    ranges = {"starts": mx.array(starts), "lengths": mx.array(lengths)}
    if with_gates:
        expected["a"], expected["b"], expected["A_log"], expected["dt_bias"] = oracle.gates_gradients(
            a, b, A_log, dt_bias, expected["g"], expected["beta"]
        )
        operands |= {"a": mx.array(hidden["a"]), "b": mx.array(hidden["b"])}
        operands |= {"A_log": mx.array(A_log), "dt_bias": mx.array(dt_bias)}
    else:
        operands |= {name: mx.array(hidden[name]) for name in ("g", "beta")}

    def op(a: Any = None, b: Any = None, A_log: Any = None, dt_bias: Any = None, **given: Any) -> Any:
        gates = (a, b, A_log, dt_bias) if with_gates else None
        return mt.gated_delta(**given, gates=gates, normalize_qk=True)

    cotangents = typed(hidden["dy"], dstate)
    for where in ("emulator", "cpu"):
        if where == "emulator":
            found, kernels = emulated_gradients(op, operands, cotangents, **ranges)
            assert kernels == DELTA
        else:
            values = mx.vjp(
                lambda *x: op(**dict(zip(operands, x, strict=True)), **ranges), [*operands.values()], cotangents
            )
            found = dict(zip(operands, values[1], strict=True))
        for name, gradient in found.items():
            # Sums over all tokens, of terms that cancel: observed 2e-5.
            bound = 1e-4 if name in ("A_log", "dt_bias") else BOUND
            assert error(gradient, expected[name]) <= bound, (where, name)


@pytest.mark.parametrize("hard", ["strong_decay", "equal_keys", "no_strength"])
def test_hard_chunks(hard: str) -> None:
    inputs = problem(B=1, T=64, Hk=1, Hv=1, Dk=32, Dv=16)
    if hard == "strong_decay":
        inputs["g"] *= 0.1
        inputs["g"][:, 3] = -1e6
    elif hard == "equal_keys":
        inputs["k"] = np.broadcast_to(inputs["k"][:, :1], inputs["k"].shape).copy()
        inputs["g"] *= 1e-3
        inputs["beta"] = np.full_like(inputs["beta"], 0.99)
    else:
        inputs["beta"][:, ::3] = 0
    dy, dstate = cotangents_of(inputs)
    found, _ = emulated_gradients(mt.gated_delta, arrays(inputs), typed(dy, dstate), check=False, normalize_qk=True)
    expected = oracle.recurrence_gradients(**inputs, dy=dy, dstate=dstate, normalize_qk=True)
    for name, gradient in found.items():
        assert error(gradient, expected[name]) <= 1e-4, name


def test_layouts_and_what_is_left_out() -> None:
    """Slices of one projection, cotangents that are broadcast, and no state."""
    inputs = problem(B=2, T=20, Hk=1, Hv=2, Dk=16, Dv=8)
    together = mx.array(np.concatenate([inputs[n].reshape(2, 20, -1) for n in "qkv"], axis=-1))
    expected = oracle.recurrence_gradients(
        **{**inputs, "state": np.zeros((2, 2, 8, 16))},
        dy=np.ones((2, 20, 2, 8)),
        dstate=np.zeros((2, 2, 8, 16)),
        normalize_qk=True,
    )
    g, beta = mx.array(inputs["g"]), mx.array(inputs["beta"])

    def op(x: mx.array, stream: Any) -> list[mx.array]:
        q, k, v = (
            mx.unflatten(part, -1, (-1, n)) for part, n in zip(mx.split(x, [16, 32], -1), (16, 16, 8), strict=True)
        )
        y, _ = mt.gated_delta(q, k, v, g, beta, normalize_qk=True, stream=stream)
        return [y.sum()]

    found, kernels = emulated_gradients(op, {"x": together}, [mx.array(1.0)])
    assert kernels == DELTA
    whole = np.concatenate([expected[n].reshape(2, 20, -1) for n in "qkv"], axis=-1)
    assert error(found["x"], whole) <= BOUND


@pytest.mark.parametrize("T", [0, 20])
def test_what_takes_stock_ops(T: int) -> None:
    """No tokens, and rows wider than the chunks' kernels hold."""
    inputs = problem(B=1, T=T, Hk=1, Hv=1, Dk=130 if T else 8, Dv=8)
    dy, dstate = cotangents_of(inputs)
    found, kernels = emulated_gradients(
        mt.gated_delta, arrays(inputs), typed(dy, dstate), check=False, normalize_qk=True
    )
    assert kernels == []
    expected = oracle.recurrence_gradients(**inputs, dy=dy, dstate=dstate, normalize_qk=True)
    for name, gradient in found.items():
        assert error(gradient, expected[name]) <= BOUND, name


def test_the_same_bits_in_every_order_and_run() -> None:
    inputs = problem(B=1, T=70, Hk=1, Hv=2, Dk=16, Dv=16)
    runs = [
        emulated_gradients(mt.gated_delta, arrays(inputs), typed(*cotangents_of(inputs)), check=check)[0]
        for check in (True, False)
    ]
    assert all(mx.array_equal(runs[0][name], runs[1][name]) for name in inputs)


@pytest.mark.parametrize(("dtype", "bound"), [(mx.float32, 2e-6), (mx.float16, 1e-3), (mx.bfloat16, 8e-3)], ids=str)
@pytest.mark.parametrize("T", [1, 2, 300])
@pytest.mark.parametrize("activation", ["silu", None])
def test_causal_conv1d(dtype: mx.Dtype, bound: float, T: int, activation: str | None) -> None:
    x, weight, state = (mx.array(a).astype(dtype) for a in convolution_problem(2, T, C=67))
    rng = np.random.default_rng(2)
    dy, dlast = (mx.array(rng.standard_normal(s).astype(np.float32)).astype(dtype) for s in (x.shape, state.shape))
    operands = {"x": x, "weight": weight, "state": state}
    found, kernels = emulated_gradients(mt.causal_conv1d, operands, [dy, dlast], T < 9, activation=activation)
    assert kernels == CONVOLUTION
    expected = oracle.convolution_gradients(*(wide(a) for a in (x, weight, state, dy, dlast)), activation)
    for name, gradient in found.items():
        assert gradient.dtype == dtype
        assert error(gradient, expected[name]) <= bound, name


def test_ragged_convolution() -> None:
    """Tokens outside of the ranges hold NaN; one state for all rows."""
    x, weight, state = convolution_problem(5, 9)
    rng = np.random.default_rng(2)
    dy, dlast = (rng.standard_normal(s).astype(np.float32) for s in (x.shape, state.shape))
    starts, lengths = [0, 2, 0, 9, 4], [9, 9, 5, 9, 6]
    hidden, hidden_dy = x.copy(), dy.copy()
    expected = {"x": np.zeros(x.shape), "weight": np.zeros(weight.shape), "state": np.zeros(state[0].shape)}
    for b, (start, end) in enumerate(zip(starts, lengths, strict=True)):
        hidden[b, :start] = hidden[b, end:] = hidden_dy[b, :start] = hidden_dy[b, end:] = np.nan
        own = [x[b : b + 1, start:end], weight, state[:1], dy[b : b + 1, start:end], dlast[b : b + 1]]
        gradients = oracle.convolution_gradients(*own)
        expected["x"][b, start:end] = gradients["x"][0]
        expected["weight"] += gradients["weight"]
        expected["state"] += gradients["state"][0]
    operands = {"x": mx.array(hidden), "weight": mx.array(weight), "state": mx.array(state[0])}
    ranges = {"starts": mx.array(starts), "lengths": mx.array(lengths)}
    found, kernels = emulated_gradients(mt.causal_conv1d, operands, [mx.array(hidden_dy), mx.array(dlast)], **ranges)
    assert kernels == CONVOLUTION
    for name, gradient in found.items():
        assert error(gradient, expected[name]) <= 2e-6, name


def test_convolution_without_a_state() -> None:
    x, weight, _ = convolution_problem(2, 5)
    dy, dlast = np.ones_like(x), np.zeros((2, 3, 20), np.float32)
    found, kernels = emulated_gradients(
        mt.causal_conv1d, {"x": mx.array(x), "weight": mx.array(weight)}, [mx.array(dy), mx.array(dlast)]
    )
    assert kernels == CONVOLUTION
    expected = oracle.convolution_gradients(x, weight, np.zeros((2, 3, 20)), dy, dlast)
    for name, gradient in found.items():
        assert error(gradient, expected[name]) <= 2e-6, name
