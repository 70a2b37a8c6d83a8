"""The gated delta rule: step by step, in chunks on simdgroup matrices, in chunks on matrix units, and its gradients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mlx_tessl.emulator.runtime import Out, Updated

from ..mlx_kernels import Case, MlxKernel, Result
from ..numerics import FLOAT32, HOST_TYPE, METAL_TYPE, SMALLEST, UNIT_ROUNDOFF, values
from ..oracles import gated_delta, gated_delta_vjp

CHUNK, NAX_CHUNK = 8, 16
SAVE_STATE = 200  # the function constant

# Of the largest element of each result: what float32 sums over Dk and some ten steps of memory leave, and what the
# truncation of every operand to tf32 leaves.
FLOAT32_ERROR, TF32_ERROR = 2.0**-18, 2.0**-6


@dataclass(frozen=True)
class Shape:
    B: int
    T: int
    Hk: int
    Hv: int
    Dk: int
    Dv: int

    @property
    def template(self) -> str:
        return f"{self.Dk}, {self.Dv}, {self.Hk}, {self.Hv}"

    @property
    def name(self) -> str:
        return f"{self.Dk}_{self.Dv}_{self.Hk}_{self.Hv}"


@dataclass(frozen=True)
class Arguments:
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    g: np.ndarray
    beta: np.ndarray
    state: np.ndarray

    @staticmethod
    def of(shape: Shape, dtype: np.dtype) -> Arguments:
        """Keys of length 1 and decays of a few percent a step, as in a model."""
        random = np.random.default_rng(4)
        s = shape
        k = random.standard_normal((s.B, s.T, s.Hk, s.Dk))
        k /= np.linalg.norm(k, axis=-1, keepdims=True)
        return Arguments(
            q=values(dtype, s.B, s.T, s.Hk, s.Dk, seed=1, scale=s.Dk**-0.5),
            k=k.astype(np.float32).astype(dtype),
            v=values(dtype, s.B, s.T, s.Hv, s.Dv, seed=3),
            g=random.uniform(0.85, 1.0, (s.B, s.T, s.Hv)).astype(np.float32).astype(dtype),
            beta=random.uniform(0.1, 0.9, (s.B, s.T, s.Hv)).astype(np.float32).astype(dtype),
            state=values(FLOAT32, s.B, s.Hv, s.Dv, s.Dk, seed=6, scale=0.5),
        )

    def all(self) -> tuple[np.ndarray, ...]:
        return self.q, self.k, self.v, self.g, self.beta, self.state


def result(name: str, array: np.ndarray, expected: np.ndarray, error: float) -> Result:
    largest = np.abs(expected).max()
    rounding = UNIT_ROUNDOFF[array.dtype] * np.abs(expected) + SMALLEST[array.dtype]
    return Result(name, array, expected, error * largest + rounding)


def forward(variant: str, dtype: np.dtype, shape: Shape) -> Case:
    """`variant` is seq, chunk or nax."""
    arguments = Arguments.of(shape, dtype)
    return launch(variant, dtype, shape, arguments, saved=None)


@dataclass(frozen=True)
class Saved:
    """What the forward pass leaves for the backward one."""

    states: np.ndarray  # at the entry of each chunk, or step
    matrices: np.ndarray  # three 16 x 16 matrices a chunk
    deltas: np.ndarray

    @staticmethod
    def of(shape: Shape, steps: int) -> Saved:
        s, chunks = shape, -(-shape.T // steps)
        return Saved(
            states=np.empty((s.B, s.Hv, chunks, s.Dv, s.Dk), np.float32),
            matrices=np.empty((s.B, s.Hv, chunks, 3, 16, 16), np.float32),
            deltas=np.empty((s.B, s.Hv, chunks, steps, s.Dv), np.float32),
        )


def launch(variant: str, dtype: np.dtype, shape: Shape, arguments: Arguments, saved: Saved | None) -> Case:
    """Run forwards; `saved` is filled if given."""
    metal, host = METAL_TYPE[dtype], HOST_TYPE[dtype]
    y, state = np.empty_like(arguments.v), np.empty_like(arguments.state)
    a = arguments
    buffers = dict(enumerate((a.q, a.k, a.v, a.state, a.g, a.beta, Out(y), Out(state), np.int32(shape.T))))
    constants = {SAVE_STATE: saved is not None}
    if variant == "seq":
        kernel = MlxKernel(
            f"seq_gated_delta_{host}_{shape.name}_1",
            f"gated_delta_seq<{metal}, {shape.template}, 1>",
            ("gated_delta_update.h",),
        )
        rows, error = 1, FLOAT32_ERROR
        if saved is not None:
            buffers[9] = Out(saved.states)
    elif variant == "chunk":
        kernel = MlxKernel(
            f"gated_delta_fused_chunk_{host}_{shape.name}_{CHUNK}",
            f"gated_delta_fused_chunk<{metal}, {shape.template}, {CHUNK}>",
            ("gated_delta_update.h",),
        )
        rows, error, constants = 8, FLOAT32_ERROR, {}
    else:
        kernel = MlxKernel(
            f"gated_delta_fused_nax_{host}_{shape.name}_{NAX_CHUNK}_1",
            f"gated_delta_fused_nax<{metal}, {shape.template}, {NAX_CHUNK}, 1>",
            ("gated_delta_update_nax.h",),
            msl=400,
        )
        rows, error = 16, TF32_ERROR
        kept = Saved.of(shape, NAX_CHUNK) if saved is None else saved
        bind = Out if saved is not None else Updated
        buffers |= {9: bind(kept.states), 10: bind(kept.matrices), 11: bind(kept.deltas)}
    expected_y, expected_state = gated_delta(*arguments.all())
    simdgroups = min(4, shape.Dv // rows)
    return Case(
        kernel,
        buffers,
        grid=(1, shape.Dv // rows // simdgroups, shape.B * shape.Hv),
        group=(32, simdgroups),
        results=(result("y", y, expected_y, error), result("state", state, expected_state, error)),
        constants=constants,
    )


def backward(variant: str, dtype: np.dtype, shape: Shape) -> tuple[Case, ...]:
    """Forwards with everything saved, then backwards; `variant` is seq or nax."""
    s, nax = shape, variant == "nax"
    a = Arguments.of(shape, dtype)
    steps = NAX_CHUNK if nax else 1
    saved = Saved.of(shape, steps)
    dy, dstate = values(dtype, *a.v.shape, seed=7), values(FLOAT32, *a.state.shape, seed=8, scale=0.1)
    dq, dk, dv = (np.zeros(x.shape, np.float32) for x in (a.q, a.k, a.v))
    dg, dbeta = (np.zeros(x.shape, np.float32) for x in (a.g, a.beta))
    dh = np.empty_like(a.state)
    buffers = dict(enumerate((a.q, a.k, a.v, a.g, a.beta, dy, dstate, saved.states, np.int32(s.T))))
    add = Updated  # gradients that several threadgroups add to
    if nax:
        buffers |= {9: add(dq), 10: add(dk), 11: Out(dv), 12: Out(dg), 13: Out(dbeta), 14: Out(dh)}
        buffers |= {15: saved.matrices, 16: saved.deltas}
        buffers[17] = Updated(np.empty((s.B, s.Hv, 1, s.Dv, s.Dk), np.float32))
        kernel = MlxKernel(
            f"gated_delta_vjp_fused_nax_{HOST_TYPE[dtype]}_{s.name}_{NAX_CHUNK}_1",
            f"gated_delta_vjp_fused_nax<{METAL_TYPE[dtype]}, {s.template}, {NAX_CHUNK}, 1>",
            ("gated_delta_update_nax_vjp.h",),
            msl=400,
        )
        grid, group = (1, 1, s.B * s.Hv), (32, s.Dv // 16)
    else:
        buffers |= {9: add(dq), 10: add(dk), 11: Out(dv), 12: add(dg), 13: add(dbeta), 14: Out(dh)}
        kernel = MlxKernel(
            f"seq_gated_delta_vjp_{HOST_TYPE[dtype]}_{s.name}_1",
            f"gated_delta_vjp_seq<{METAL_TYPE[dtype]}, {s.template}, 1>",
            ("gated_delta_update_vjp.h",),
        )
        grid, group = (1, s.Dv // 4, s.B * s.Hv), (32, 4)
    error = TF32_ERROR if nax else FLOAT32_ERROR
    expected = gated_delta_vjp(*a.all(), dy, dstate)
    arrays = {"dq": dq, "dk": dk, "dv": dv, "dg": dg, "dbeta": dbeta, "dstate": dh}
    results = tuple(result(name, arrays[name], expected[name], error) for name in arrays if not (nax and name == "dg"))
    cases = [launch(variant, dtype, shape, a, saved), Case(kernel, buffers, grid, group, results)]
    if nax:  # it leaves the gradient of the logarithm of the chunk's decays
        finish = MlxKernel(
            f"gated_delta_dgamma_to_dg_{HOST_TYPE[dtype]}_{NAX_CHUNK}",
            f"gated_delta_dgamma_to_dg<{METAL_TYPE[dtype]}, {NAX_CHUNK}>",
            ("gated_delta_update_nax_vjp.h",),
            msl=400,
        )
        chunks = -(-s.T // NAX_CHUNK)
        numbers = {2: np.int32(s.T), 3: np.int32(s.Hv), 4: np.int32(s.B * s.Hv)}
        final = (result("dg", dg, expected["dg"], error),)
        cases.append(Case(finish, {0: a.g, 1: Updated(dg)} | numbers, (1, chunks), (s.B * s.Hv, 1), final))
    return tuple(cases)
