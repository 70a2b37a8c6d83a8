"""Problems of attention for the shaders, and what they come to in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mlx_tessl._ext import plan as plans
from mlx_tessl.emulator.meter import Reading
from mlx_tessl.emulator.runtime import Order

from ..ops.attention_bounds import Arithmetic, Bounds, summed_to
from ..ops.attention_oracle import Attended, attend
from .mutants import ROOT, bindings, source_of

cached_source = cache(source_of)
Array = np.ndarray[Any, Any]


def stored(x: Array, dtype: str) -> Array:
    """float32 as a buffer of `dtype`, rounded to the nearest; bfloat16 as its bits."""
    if dtype != "bfloat16":
        return np.ascontiguousarray(x.astype(dtype))
    bits = np.ascontiguousarray(x.astype(np.float32)).view(np.uint32)
    rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FC0), rounded).astype(np.uint16)


def wide(x: Array, dtype: str) -> Array:
    if dtype == "bfloat16":
        x = (x.astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float64)


@dataclass
class Problem:
    """A call of attention on a device. Sizes are ragged: two tiles of queries, three blocks of keys."""

    device: tuple[str, str] = ("m1", "14.0")
    dtype: str = "float32"
    B: int = 2
    heads: int = 2
    kv_heads: int = 1
    Tq: int = 45
    Tk: int = 70
    P: int = 0
    D: int = 64
    Dv: int | None = None
    mask: Literal["bool", "additive"] | None = None
    mask_shape: tuple[int, ...] | None = None
    causal: bool = False
    window: tuple[int, int] = (-1, -1)
    starts: tuple[int, ...] | None = None
    lengths: tuple[int, ...] | None = None
    sinks: bool = False
    softcap: float = 0.0
    scale: float | None = None
    relaxed: bool = False
    layout: Literal["bhtd", "bthd", "bhdt"] = "bhtd"
    seed: int = 0
    change: Callable[[dict[str, Array]], None] = field(default=lambda arrays: None)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.Dv = self.D if self.Dv is None else self.Dv
        self.scale = max(self.D, 1) ** -0.5 if self.scale is None else self.scale

        def normal(*shape: int) -> Array:
            return rng.standard_normal(shape).astype(np.float32)

        arrays = {
            "q": normal(self.B, self.heads, self.Tq, self.D),
            "k": normal(self.B, self.kv_heads, self.Tk, self.D),
            "v": normal(self.B, self.kv_heads, self.Tk, self.Dv),
        }
        if self.P:
            arrays["prefix_k"] = normal(self.kv_heads, self.P, self.D)
            arrays["prefix_v"] = normal(self.kv_heads, self.P, self.Dv)
        if self.mask:
            shape = self.mask_shape or (self.B, self.heads, self.Tq, self.P + self.Tk)
            arrays["mask"] = normal(*shape)
            if self.mask == "additive":
                arrays["mask"] = np.where(rng.random(shape) < 0.3, np.float32(-np.inf), arrays["mask"])
            else:
                arrays["mask"] = rng.random(shape) < 0.7
        arrays["dout"] = normal(self.B, self.heads, self.Tq, self.Dv)
        if self.sinks:
            arrays["sinks"] = normal(self.heads)
        self.change(arrays)

        # What the kernels are given, and the same numbers for the oracle.
        self.buffers: dict[str, Array] = {}
        self.values: dict[str, Array] = {}
        for name, x in arrays.items():
            dtype = "bool" if x.dtype == bool else "float32" if name == "sinks" else self.dtype
            self.buffers[name] = stored(x, dtype) if dtype != "bool" else x.astype(np.uint8)
            self.values[name] = wide(self.buffers[name], dtype) if dtype != "bool" else x
        for name in ("starts", "lengths"):
            if getattr(self, name) is not None:
                self.buffers[name] = np.array(getattr(self, name), np.int32)
        self.strides = {name: self.lay_out(name) for name in ("q", "k", "v")}

    def lay_out(self, name: str) -> tuple[int, ...]:
        """Stores an operand in another order of dimensions, and gives its strides in elements."""
        order = {"bhtd": (0, 1, 2, 3), "bthd": (0, 2, 1, 3), "bhdt": (0, 1, 3, 2)}[self.layout]
        shape = self.buffers[name].shape
        x = np.ascontiguousarray(self.buffers[name].transpose(order))
        self.buffers[name] = x
        back = np.argsort(order)
        steps = [int(np.prod(x.shape[i + 1 :])) for i in range(4)]
        assert [x.shape[i] for i in back] == list(shape)
        return tuple(steps[i] for i in back)

    @property
    def keys(self) -> int:
        return self.P + self.Tk

    def call(self, saves_ends: bool = True) -> Any:
        shapes = {"q": (self.B, self.heads, self.Tq, self.D), "k": (self.B, self.kv_heads, self.Tk, self.D)}
        shapes["v"] = (*shapes["k"][:3], self.Dv)  # type: ignore[assignment]
        operands = {name: plans.Operand(shape, self.strides[name]) for name, shape in shapes.items()}
        for name in ("prefix_k", "prefix_v", "mask", "starts", "lengths", "sinks"):
            if name in self.buffers:
                operands[name] = plans.Operand(self.buffers[name].shape)
        return plans.Attention(
            self.dtype,
            **operands,
            additive=self.mask == "additive",
            causal=self.causal,
            window_left=self.window[0],
            window_right=self.window[1],
            scale=self.scale,
            softcap=self.softcap,
            relaxed=self.relaxed,
            saves_ends=saves_ends,
            gpu=self.device[0],
            macos=self.device[1],
        )

    def inputs(self) -> list[Array]:
        names = ("q", "k", "v", "prefix_k", "prefix_v", "mask", "starts", "lengths", "sinks")
        return [self.buffers[name] for name in names if name in self.buffers]

    def empty(self, shape: tuple[int, ...], dtype: str | None = None) -> Array:
        dtype = dtype or self.dtype
        return np.zeros(shape, np.uint16 if dtype == "bfloat16" else dtype)

    def forward_outputs(self) -> list[Array]:
        rows = (self.B, self.heads, self.Tq)
        return [self.empty((*rows, self.Dv or 0)), self.empty((*rows, 2), "float32")]

    def grad_outputs(self) -> dict[str, Array]:
        D, Dv = self.D, self.Dv or 0
        outputs = {
            "q": self.empty((self.B, self.heads, self.Tq, D)),
            "k": self.empty((self.B, self.kv_heads, self.Tk, D)),
            "v": self.empty((self.B, self.kv_heads, self.Tk, Dv)),
        }
        if self.P:
            outputs["prefix_k"] = self.empty((self.kv_heads, self.P, D))
            outputs["prefix_v"] = self.empty((self.kv_heads, self.P, Dv))
        if self.mask == "additive":
            outputs["mask"] = self.empty(self.buffers["mask"].shape)
        if self.sinks:
            outputs["sinks"] = self.empty((self.heads,), "float32")
        return outputs


def launch_plan(
    plan: Any,
    inputs: list[Array],
    outputs: list[Array],
    root: Path = ROOT,
    check: bool = True,
    order: Order = "forward",
    seed: int = 1,
    only: str = "",
) -> list[Reading]:
    """Runs a plan's launches in order, from `root` those whose kernels have `only` in their names."""
    scratch = [np.zeros(nbytes, np.uint8) for nbytes in plan.scratch]
    readings = []
    for launch in plan.launches:
        readings.append(
            cached_source(launch.family, root if only in launch.kernel else ROOT).launch(
                launch.kernel,
                bindings(launch, inputs, outputs, scratch),
                grid=launch.grid,
                group=launch.group,
                constants=dict(launch.constants),
                check=check,
                order=order,
                seed=seed,
            )
        )
    return readings


def forward(problem: Problem, **options: Any) -> tuple[Array, Array]:
    """Output, and where the softmax of each query ended, as the kernels give them, widened."""
    outputs = problem.forward_outputs()
    launch_plan(problem.call().plan(), problem.inputs(), outputs, **options)
    return wide(outputs[0], problem.dtype), outputs[1].astype(np.float64)


def attended(problem: Problem) -> Attended:
    """The same in float64."""
    p, x = problem, problem.values
    left, right = (None if reach < 0 else reach for reach in p.window)
    return attend(
        x["q"],
        x["k"],
        x["v"],
        scale=float(np.float32(p.scale)),
        mask=x.get("mask"),
        causal=p.causal,
        window=(left, right),
        lengths=None if p.lengths is None else np.array(p.lengths),
        starts=None if p.starts is None else np.array(p.starts),
        sinks=x.get("sinks"),
        softcap=p.softcap or None,
        prefix=(x["prefix_k"], x["prefix_v"]) if p.P else None,
    )


def bounds(problem: Problem) -> Bounds:
    """What the kernels that a device takes for it may err by."""
    return Bounds(attended(problem), Arithmetic.of(problem.dtype, problem.call().kind, problem.relaxed))


def gradient_bounds(problem: Problem) -> dict[str, tuple[Array, Array]]:
    """Each gradient that the kernels give in float64, and what it may err by; few queries go the way of many."""
    path = "portable" if problem.device[0] < "m5" else "tensorops"
    b = Bounds(attended(problem), Arithmetic.of(problem.dtype, path, problem.relaxed))
    dout = problem.values["dout"]
    exact, allowed = b.a.gradients(dout), b.gradients(dout)
    if problem.mask == "additive":
        shape = problem.buffers["mask"].shape
        exact["mask"], allowed["mask"] = summed_to(exact["mask"], shape), b.mask(dout, shape)
    return {name: (exact[name], allowed[name]) for name in problem.grad_outputs()}


def copied_prefix(problem: Problem, name: Literal["k", "v"]) -> Array:
    """Keys or values behind a copy of the prefix for each row."""
    x, prefix = problem.values[name], problem.values[f"prefix_{name}"]
    return np.concatenate([np.broadcast_to(prefix, (x.shape[0], *prefix.shape)), x], axis=2)


def log_sums(ends: Array) -> Array:
    """The log-sum-exp that the ends of a softmax make, 0 where nothing is visible."""
    most, total = ends[..., 0], ends[..., 1]
    return np.where(total == 0, 0.0, most * np.log(2) + np.log(np.where(total == 0, 1.0, total)))


def saved_by_oracle(problem: Problem) -> list[Array]:
    """Output and the ends of the softmax as buffers."""
    a = attended(problem)
    return [stored(a.out, problem.dtype), np.stack([a.most / np.log(2), a.total], -1).astype(np.float32)]


def gradients(problem: Problem, saved: list[Array] | None = None, **options: Any) -> dict[str, Array]:
    """Gradients as the kernels give them, widened, from what the forward pass saved."""
    inputs = [*problem.inputs(), *(saved or saved_by_oracle(problem)), problem.buffers["dout"]]
    outputs = problem.grad_outputs()
    launch_plan(problem.call().grad_plan(), inputs, list(outputs.values()), **options)
    return {name: wide(x, "float32" if name == "sinks" else problem.dtype) for name, x in outputs.items()}
