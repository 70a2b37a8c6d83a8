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

from .mutants import ROOT, bindings, source_of

cached_source = cache(source_of)
LARGEST = float(np.finfo(np.float32).max)
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

    def call(self, saves_lse: bool = True) -> Any:
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
            saves_lse=saves_lse,
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
        return [self.empty((*rows, self.Dv or 0)), self.empty(rows, "float32")]

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
    """Output and log-sum-exp as the kernels give them, widened."""
    outputs = problem.forward_outputs()
    launch_plan(problem.call().plan(), problem.inputs(), outputs, **options)
    return wide(outputs[0], problem.dtype), outputs[1].astype(np.float64)


@dataclass
class Oracle:
    """Attention in float64, whole matrices."""

    problem: Problem

    def __post_init__(self) -> None:
        p = self.problem
        x = p.values
        groups = p.heads // p.kv_heads
        self.k, self.v = (self.with_prefix(name) for name in ("k", "v"))
        dots = x["q"] @ np.repeat(self.k, groups, 1).swapaxes(2, 3) * p.scale
        self.tanh = np.tanh(dots / p.softcap) if p.softcap else np.zeros_like(dots)
        scores = p.softcap * self.tanh if p.softcap else dots
        if p.mask == "additive":
            scores = scores + x["mask"]
        visible = self.visible()
        top = np.max(np.where(visible, scores, -np.inf), axis=-1, initial=-np.inf, keepdims=True)
        if p.sinks:
            sinks = x["sinks"][None, :, None, None]
            top = np.maximum(top, sinks)
        top = np.where(np.isfinite(top), top, 0.0)
        weights = np.where(visible, np.exp(np.where(visible, scores, top) - top), 0.0)
        total = weights.sum(-1, keepdims=True)
        if p.sinks:
            total = total + np.exp(sinks - top)
        self.some = visible.any(-1)
        total = np.where(self.some[..., None], total, 1.0)
        self.weights = weights / total
        self.out = self.weights @ np.repeat(self.v, groups, 1)
        self.lse = np.where(self.some, (top + np.log(total))[..., 0], LARGEST)

    def with_prefix(self, name: str) -> Array:
        x = self.problem.values[name]
        if self.problem.P == 0:
            return x
        prefix = self.problem.values[f"prefix_{name}"]
        return np.concatenate([np.broadcast_to(prefix, (x.shape[0], *prefix.shape)), x], axis=2)

    def visible(self) -> Array:
        p = self.problem
        position = np.arange(p.Tq)[:, None] + p.Tk - p.Tq
        key = np.arange(p.keys)[None, :] - p.P
        visible = np.ones((p.Tq, p.keys), bool)
        if p.causal:
            visible &= key <= position
        if p.window[0] >= 0:
            visible &= key >= position - p.window[0]
        if p.window[1] >= 0:
            visible &= key <= position + p.window[1]
        rows = np.broadcast_to(visible, (p.B, p.heads, p.Tq, p.keys)).copy()
        for b in range(p.B):
            if p.starts is not None:
                rows[b] &= (key < 0) | (key >= p.starts[b])
            if p.lengths is not None:
                rows[b] &= (key < 0) | (key < p.lengths[b])
        if p.mask:
            mask = p.values["mask"]
            rows &= mask if p.mask == "bool" else mask > -np.inf
        return rows

    def gradients(self) -> dict[str, Array]:
        p = self.problem
        x = p.values
        groups = p.heads // p.kv_heads
        dout = x["dout"]
        k, v = (np.repeat(y, groups, 1) for y in (self.k, self.v))
        dweights = dout @ v.swapaxes(2, 3)
        delta = (dout * self.out).sum(-1, keepdims=True)
        dscores = self.weights * (dweights - delta)
        ddots = dscores * (1 - self.tanh**2) * p.scale

        def of_kv_heads(y: Array) -> Array:
            return y.reshape(p.B, p.kv_heads, groups, *y.shape[2:]).sum(2)

        dk, dv = of_kv_heads(ddots.swapaxes(2, 3) @ x["q"]), of_kv_heads(self.weights.swapaxes(2, 3) @ dout)
        result = {"q": ddots @ k, "k": dk[:, :, p.P :], "v": dv[:, :, p.P :]}
        if p.P:
            result |= {"prefix_k": dk[:, :, : p.P].sum(0), "prefix_v": dv[:, :, : p.P].sum(0)}
        if p.mask == "additive":
            shape = p.buffers["mask"].shape
            lined_up = (1,) * (4 - len(shape)) + shape
            axes = tuple(i for i in range(4) if lined_up[i] == 1 != dscores.shape[i])
            result["mask"] = dscores.sum(axes, keepdims=True).reshape(shape)
            self.mask_magnitude = np.abs(dscores).sum(axes).max(initial=0.0)
        if p.sinks:
            shares = np.where(self.some, np.exp(x["sinks"][None, :, None] - self.lse), 0.0)
            result["sinks"] = -(shares * delta[..., 0]).sum((0, 2))
        return result


def saved_by_oracle(problem: Problem) -> list[Array]:
    """Output and log-sum-exp as buffers."""
    oracle = Oracle(problem)
    return [stored(oracle.out, problem.dtype), oracle.lse.astype(np.float32)]


def gradients(problem: Problem, saved: list[Array] | None = None, **options: Any) -> dict[str, Array]:
    """Gradients as the kernels give them, widened, from what the forward pass saved."""
    inputs = [*problem.inputs(), *(saved or saved_by_oracle(problem)), problem.buffers["dout"]]
    outputs = problem.grad_outputs()
    launch_plan(problem.call().grad_plan(), inputs, list(outputs.values()), **options)
    return {name: wide(x, "float32" if name == "sinks" else problem.dtype) for name, x in outputs.items()}
