"""gated_delta and causal_conv1d against float64, and their promises about rows."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import mlx_tessl as mt

from . import gated_delta_oracle as oracle

GOLDEN = Path(__file__).parents[1] / "golden" / "gdn"
CASES = sorted(path.stem for path in GOLDEN.glob("*.safetensors"))

CLEAR_REFS = Path("/proc/self/clear_refs")

OPS = {"op": (mt.gated_delta, mt.causal_conv1d), "twin": (mt.reference.gated_delta, mt.reference.causal_conv1d)}
each_op = pytest.mark.parametrize("which", OPS)


def resident(name: str) -> int:
    """Bytes of memory, now (VmRSS) or at the peak (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def error(x: mx.array, expected: np.ndarray) -> float:
    """Of the largest magnitude."""
    assert x.shape == expected.shape
    scale = max(float(np.abs(expected).max(initial=0.0)), 1e-30)
    return float(np.abs(np.array(x.astype(mx.float32)).astype(np.float64) - expected).max(initial=0.0)) / scale


def problem(
    B: int = 2, T: int = 70, Hk: int = 2, Hv: int = 4, Dk: int = 32, Dv: int = 48, seed: int = 0
) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([seed, B, T])
    inputs = {
        "q": rng.standard_normal((B, T, Hk, Dk)),
        "k": rng.standard_normal((B, T, Hk, Dk)),
        "v": rng.standard_normal((B, T, Hv, Dv)),
        "g": -np.logaddexp(2 * rng.standard_normal((B, T, Hv)) - 2, 0) * (0.2 + 4 * rng.random((1, 1, Hv))),
        "beta": 1 / (1 + np.exp(-rng.standard_normal((B, T, Hv)))),
        "state": 0.3 * rng.standard_normal((B, Hv, Dv, Dk)),
    }
    return {name: x.astype(np.float32) for name, x in inputs.items()}


def convolution_problem(B: int, T: int, C: int = 20, K: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng([B, T, C, K])
    shapes = ((B, T, C), (C, K), (B, K - 1, C))
    x, weight, state = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    return x, weight, state


def arrays(inputs: dict[str, np.ndarray], dtype: mx.Dtype = mx.float32) -> dict[str, mx.array]:
    return {name: mx.array(x).astype(dtype if name in "qkv" else mx.float32) for name, x in inputs.items()}


class TestGolden:
    """Observed: outputs within 4e-7, gradients within 2e-6 of the largest magnitude."""

    @each_op
    @pytest.mark.parametrize("case", CASES)
    def test_outputs(self, which: str, case: str) -> None:
        data: dict[str, mx.array] = dict(mx.load(str(GOLDEN / f"{case}.safetensors")))  # type: ignore[arg-type]
        inputs = {name: data[name] for name in ("q", "k", "v", "g", "beta")}
        state = data["state"].swapaxes(-1, -2) if "state" in data else None
        y, final = OPS[which][0](**inputs, state=state, normalize_qk=True)
        assert error(y, np.array(data["y"])) <= 1e-5
        assert error(final, np.array(data["final_state"]).swapaxes(-1, -2)) <= 1e-5

    @each_op
    @pytest.mark.parametrize("case", CASES)
    def test_gradients(self, which: str, case: str) -> None:
        data: dict[str, mx.array] = dict(mx.load(str(GOLDEN / f"{case}.safetensors")))  # type: ignore[arg-type]
        names = [name for name in ("q", "k", "v", "g", "beta", "state") if name in data]

        def loss(*inputs: mx.array) -> mx.array:
            named = dict(zip(names, inputs, strict=True))
            if "state" in named:
                named["state"] = named["state"].swapaxes(-1, -2)
            y, final = OPS[which][0](**named, normalize_qk=True)
            return (y * data["dy"]).sum() + (final.swapaxes(-1, -2) * data["dstate"]).sum()

        gradients = mx.grad(loss, argnums=list(range(len(names))))(*(data[name] for name in names))
        for name, gradient in zip(names, gradients, strict=True):
            assert error(gradient, np.array(data[f"grad.{name}"])) <= 1e-4, name


class TestGatedDelta:
    @each_op
    @pytest.mark.parametrize("T", [0, 1, 2, 5, 63, 64, 65, 129, 300])
    @pytest.mark.parametrize("normalize_qk", [False, True])
    def test_lengths_of_time(self, which: str, T: int, normalize_qk: bool) -> None:
        inputs = problem(B=1, T=T)
        if not normalize_qk:
            inputs["k"] /= np.sqrt(inputs["k"].shape[-1])
        y, state = OPS[which][0](**arrays(inputs), normalize_qk=normalize_qk)
        expected_y, expected_state = oracle.recurrence(**inputs, normalize_qk=normalize_qk)
        assert error(y, expected_y) <= 1e-5
        assert error(state, expected_state) <= 1e-5

    @each_op
    @pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
    @pytest.mark.parametrize("T", [1, 100])
    def test_gates(self, which: str, dtype: mx.Dtype, T: int) -> None:
        inputs = {name: np.array(x) for name, x in arrays(problem(B=1, T=T)).items() if name not in {"g", "beta"}}
        rng = np.random.default_rng(5)
        # softplus from e^-15, where a naive log(1 + e^x) has no digit left, to x itself.
        a = (8 * rng.standard_normal((1, T, 4))).astype(np.float32)
        b = (2 * rng.standard_normal((1, T, 4))).astype(np.float32)
        A_log, dt_bias = (rng.standard_normal(4).astype(np.float32) for _ in range(2))
        typed = [mx.array(x).astype(dtype) for x in (a, b)] + [mx.array(A_log), mx.array(dt_bias)]
        operands = arrays(inputs, dtype)
        y, state = OPS[which][0](**operands, gates=tuple(typed), normalize_qk=True)
        assert y.dtype == dtype
        assert state.dtype == mx.float32
        g, beta = oracle.gates(*(np.array(x.astype(mx.float32)) for x in typed))
        wide = {name: np.array(x.astype(mx.float32)) for name, x in operands.items()}
        expected_y, expected_state = oracle.recurrence(**wide, g=g, beta=beta, normalize_qk=True)
        assert error(y, expected_y) <= {mx.float32: 1e-5, mx.float16: 1e-3, mx.bfloat16: 8e-3}[dtype]
        assert error(state, expected_state) <= 1e-5

    @each_op
    def test_a_strong_decay_swallows_no_weak_one(self, which: str) -> None:
        """In float32 a running sum past 1e6 has lost the decays that follow."""
        inputs = problem(T=64)
        inputs["g"] *= 0.1
        inputs["g"][:, 3] = -1e6
        y, state = OPS[which][0](**arrays(inputs), normalize_qk=True)
        expected_y, expected_state = oracle.recurrence(**inputs, normalize_qk=True)
        assert error(y, expected_y) <= 1e-5
        assert error(state, expected_state) <= 1e-5

    @each_op
    def test_equal_keys(self, which: str) -> None:
        """Text that repeats one token: I + A is as far from the identity as it gets."""
        inputs = problem(T=128)
        inputs["k"] = np.broadcast_to(inputs["k"][:, :1], inputs["k"].shape).copy()
        inputs["g"] *= 1e-3
        inputs["beta"] = np.full_like(inputs["beta"], 0.99)
        y, state = OPS[which][0](**arrays(inputs), normalize_qk=True)
        expected_y, expected_state = oracle.recurrence(**inputs, normalize_qk=True)
        assert error(y, expected_y) <= 1e-5
        assert error(state, expected_state) <= 1e-5

    @each_op
    def test_many_steps_drift_no_further_than_one_pass(self, which: str) -> None:
        """bfloat16 operands, 256 single steps: the state is float32 all the way."""
        inputs = arrays(problem(B=1, T=256), mx.bfloat16)
        together, last = OPS[which][0](**inputs, normalize_qk=True)
        state = inputs.pop("state")
        steps = []
        for t in range(256):
            y, state = OPS[which][0](**{n: x[:, t : t + 1] for n, x in inputs.items()}, state=state, normalize_qk=True)
            steps.append(y)
        assert state.dtype == mx.float32
        assert error(state, np.array(last)) <= 1e-5
        assert error(mx.concatenate(steps, axis=1), np.array(together.astype(mx.float32))) <= 8e-3

    @pytest.mark.parametrize("T", [1, 4, 100])
    def test_ragged_rows_have_the_bits_of_rows_alone(self, T: int) -> None:
        inputs = arrays(problem(B=4, T=T))
        starts, lengths = [0, min(3, T), 0, T], [T, T, max(T - 9, 0), T + 5]
        y, state = mt.gated_delta(**inputs, normalize_qk=True, starts=mx.array(starts), lengths=mx.array(lengths))
        for b, (start, end) in enumerate(zip(starts, lengths, strict=True)):
            own = {n: x[b : b + 1] if n == "state" else x[b : b + 1, start:end] for n, x in inputs.items()}
            own_y, own_state = mt.gated_delta(**own, normalize_qk=True)
            assert mx.array_equal(y[b : b + 1, start:end], own_y)
            assert mx.array_equal(state[b : b + 1], own_state)
            assert not mx.any(y[b, :start]).item()
            assert not mx.any(y[b, end:]).item()

    @pytest.mark.parametrize("size", [64, 128, 192])
    @pytest.mark.parametrize("rest", [0, 5, 44])
    def test_pieces_of_whole_chunks_have_the_bits_of_the_whole(self, size: int, rest: int) -> None:
        """What is left after them may be a piece of its own, if of more than the four tokens that go one by one."""
        T = 256 + rest
        inputs = arrays(problem(B=2, T=T))
        whole_y, whole_state = mt.gated_delta(**inputs, normalize_qk=True)
        state = inputs.pop("state")
        ys = []
        for begin in range(0, T, size):
            piece = {name: x[:, begin : begin + size] for name, x in inputs.items()}
            y, state = mt.gated_delta(**piece, state=state, normalize_qk=True)
            ys.append(y)
        assert mx.array_equal(mx.concatenate(ys, axis=1), whole_y)
        assert mx.array_equal(state, whole_state)

    @each_op
    def test_hidden_tokens_are_not_read(self, which: str) -> None:
        inputs = problem(B=2, T=70)
        poisoned = {name: x.copy() for name, x in inputs.items()}
        for name in ("q", "k", "v", "g", "beta"):
            poisoned[name][0, 50:] = np.nan
            poisoned[name][1, :20] = np.nan
        y, state = OPS[which][0](
            **arrays(poisoned), starts=mx.array([0, 20]), lengths=mx.array([50, 70]), normalize_qk=True
        )
        for b, span in enumerate((slice(0, 50), slice(20, 70))):
            own = {n: x[b : b + 1] if n == "state" else x[b : b + 1, span] for n, x in inputs.items()}
            expected_y, expected_state = oracle.recurrence(**own, normalize_qk=True)
            assert error(y[b : b + 1, span], expected_y) <= 1e-5
            assert error(state[b : b + 1], expected_state) <= 1e-5

    @each_op
    @pytest.mark.parametrize("T", [0, 1, 70])
    def test_one_snapshot_serves_all_rows_and_stays(self, which: str, T: int) -> None:
        inputs = arrays(problem(B=3, T=T))
        snapshot = inputs.pop("state")[:1]
        before = np.array(snapshot)
        copies = mx.contiguous(mx.broadcast_to(snapshot, (3, *snapshot.shape[1:])))
        expected = OPS[which][0](**inputs, state=copies, normalize_qk=True)
        for shared in (snapshot, snapshot[0]):
            results = OPS[which][0](**inputs, state=shared, normalize_qk=True)
            assert all(mx.array_equal(x, y) for x, y in zip(results, expected, strict=True))
        assert np.array_equal(np.array(snapshot), before)


class TestCausalConv1d:
    @each_op
    @pytest.mark.parametrize("T", [0, 1, 2, 3, 4, 70])
    @pytest.mark.parametrize("K", [1, 2, 4])
    @pytest.mark.parametrize("activation", ["silu", None])
    def test_result(self, which: str, T: int, K: int, activation: Any) -> None:
        x, weight, state = convolution_problem(2, T, K=K)
        for given in (None, state, state[:1], state[0]):
            expected_y, expected_last = oracle.convolution(x, weight, given, activation)
            before = None if given is None else mx.array(given)
            y, last = OPS[which][1](mx.array(x), mx.array(weight), before, activation=activation)
            assert error(y, expected_y) <= 1e-6
            assert np.array_equal(np.array(last), expected_last.astype(np.float32))

    @each_op
    def test_ragged_rows(self, which: str) -> None:
        x, weight, state = convolution_problem(5, 9)
        starts, lengths = [0, 2, 0, 9, 4], [9, 9, 5, 9, 6]
        hidden = x.copy()
        for b, (start, end) in enumerate(zip(starts, lengths, strict=True)):
            hidden[b, :start] = hidden[b, end:] = np.nan
        y, last = OPS[which][1](
            mx.array(hidden), mx.array(weight), mx.array(state), starts=mx.array(starts), lengths=mx.array(lengths)
        )
        for b, (start, end) in enumerate(zip(starts, lengths, strict=True)):
            own_y, own_last = OPS[which][1](
                mx.array(x[b : b + 1, start:end]), mx.array(weight), mx.array(state[b : b + 1])
            )
            assert mx.array_equal(y[b : b + 1, start:end], own_y)
            assert mx.array_equal(last[b : b + 1], own_last)
            assert not mx.any(y[b, :start]).item()
            assert not mx.any(y[b, end:]).item()

    @each_op
    def test_pieces_are_the_whole(self, which: str) -> None:
        x, weight, _ = (mx.array(a) for a in convolution_problem(1, 30))
        whole, last = OPS[which][1](x, weight)
        state, ys = None, []
        for begin, end in ((0, 1), (1, 3), (3, 20), (20, 30)):
            y, state = OPS[which][1](x[:, begin:end], weight, state)
            ys.append(y)
        assert mx.array_equal(mx.concatenate(ys, axis=1), whole)
        assert mx.array_equal(state, last)

    @each_op
    @pytest.mark.parametrize("activation", ["silu", None])
    def test_gradients(self, which: str, activation: Any) -> None:
        """A row whole, and one whose first and last tokens are hidden. Observed: 4e-7 of the largest magnitude."""
        x, weight, state = convolution_problem(2, 70)
        dy, dlast = (np.random.default_rng(2).standard_normal(a.shape).astype(np.float32) for a in (x, state))
        starts, lengths = [0, 11], [70, 50]
        fixed = {"activation": activation, "starts": mx.array(starts), "lengths": mx.array(lengths)}
        _, gradients = mx.vjp(
            lambda *operands: list(OPS[which][1](*operands, **fixed)),
            [mx.array(a) for a in (x, weight, state)],
            [mx.array(dy), mx.array(dlast)],
        )
        expected = [np.zeros(a.shape) for a in (x, weight, state)]
        for b, (start, end) in enumerate(zip(starts, lengths, strict=True)):
            row = oracle.convolution_gradients(
                x[b : b + 1, start:end],
                weight,
                state[b : b + 1],
                dy[b : b + 1, start:end],
                dlast[b : b + 1],
                activation,
            )
            expected[0][b, start:end] = row["x"][0]
            expected[1] += row["weight"]
            expected[2][b] = row["state"][0]
        for gradient, right in zip(gradients, expected, strict=True):
            assert error(gradient, right) <= 2e-6


class TestMemoryOfGradients:
    @pytest.mark.skipif(not CLEAR_REFS.exists(), reason="reads resident memory as Linux tells it")
    def test_gated_delta(self) -> None:
        """A state for 64 tokens: one for each token would be 268 MB. Observed: 15 MB; the twin takes 311 MB."""
        inputs = arrays(problem(1, 8192, 1, 2, 64, 64))
        mx.eval(inputs)
        mx.clear_cache()
        ctypes.CDLL(None).malloc_trim(0)  # what is free is given back, so that its use shows
        before = resident("VmRSS")
        CLEAR_REFS.write_text("5")  # the peak starts anew
        mx.eval(mx.grad(lambda x: mt.gated_delta(**x, normalize_qk=True)[0].sum())(inputs))
        assert resident("VmHWM") - before <= 64e6

    def test_causal_conv1d(self) -> None:
        """Observed: 22 MB for 1024 tokens of 256 channels, 96 MB for 4096."""

        def peak(T: int) -> int:
            inputs = [mx.array(x) for x in convolution_problem(1, T, 256)]
            mx.eval(inputs)
            before = mx.get_active_memory()
            mx.reset_peak_memory()
            mx.eval(mx.grad(lambda *x: mt.causal_conv1d(*x)[0].sum(), argnums=[0, 1, 2])(*inputs))
            return mx.get_peak_memory() - before

        assert peak(4096) <= 5 * peak(1024)
